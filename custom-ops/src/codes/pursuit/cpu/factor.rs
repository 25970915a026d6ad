//! The small system of one signal: the triangular factor of its support and the coordinates along
//! the basis, in f64.

/// `L` row by row, `z`, and `c`, the coordinates of the fit: `z` itself unless coefficients must
/// not be negative.
#[derive(Debug, Default)]
pub(super) struct Factor {
    /// Row `k` starts at `k (k + 1) / 2` and ends with `ρ_k`.
    rows: Vec<f64>,
    z: Vec<f64>,
    c: Vec<f64>,
    x: Vec<f64>,
}

fn start_of(k: usize) -> usize {
    k * (k + 1) / 2
}

impl Factor {
    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.z.clear();
        self.c.clear();
        self.x.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.z.len()
    }

    pub(super) fn coordinates(&self) -> (&[f64], &[f64]) {
        (&self.z, &self.c)
    }

    /// Adds an atom with inner products `w` and `ρ` with the basis, along whose new direction the
    /// signal is `z`.
    pub(super) fn push(&mut self, w: impl Iterator<Item = f64>, rho: f64, z: f64) {
        self.rows.extend(w);
        self.rows.push(rho);
        self.z.push(z);
        self.c.push(z);
    }

    fn row(&self, k: usize) -> &[f64] {
        &self.rows[start_of(k)..start_of(k + 1)]
    }

    /// `x` in `Lᵀ x = z`: the coefficients that leave the least residual.
    pub(super) fn solve(&mut self) -> &[f64] {
        self.x.clear();
        self.x.extend_from_slice(&self.z);
        for k in (0..self.x.len()).rev() {
            let row = &self.rows[start_of(k)..start_of(k + 1)];
            let x = self.x[k] / row[k];
            self.x[k] = x;
            self.x[..k].iter_mut().zip(row).for_each(|(earlier, w)| *earlier -= w * x);
        }
        &self.x
    }

    /// `x ≥ 0` that leaves the least residual, and its coordinates: `c = Lᵀ x`.
    ///
    /// The active set method of Lawson and Hanson, "Solving least squares problems", 1974, chapter
    /// 23, on the `k × k` system `L Lᵀ`; where no coefficient of the free solution is negative,
    /// that is the answer.
    pub(super) fn solve_nonnegative(&mut self) -> &[f64] {
        if self.solve().iter().all(|&x| x >= 0.) {
            self.c.copy_from_slice(&self.z);
            return &self.x;
        }
        let k = self.len();
        let gram =
            |i: usize, j: usize| -> f64 { self.row(i).iter().zip(self.row(j)).map(|(a, b)| a * b).sum() };
        let gram: Vec<f64> = (0..k * k).map(|e| gram(e / k, e % k)).collect();
        let right: Vec<f64> =
            (0..k).map(|i| self.row(i).iter().zip(&self.z).map(|(l, z)| l * z).sum()).collect();
        self.x = active_set(&gram, &right);
        for l in 0..k {
            self.c[l] = (l..k).map(|i| self.row(i)[l] * self.x[i]).sum();
        }
        &self.x
    }
}

/// `argmin ½ xᵀ H x − bᵀ x` over `x ≥ 0` for a positive definite `H`.
fn active_set(h: &[f64], b: &[f64]) -> Vec<f64> {
    let k = b.len();
    let scale = b.iter().fold(0., |scale: f64, b| scale.max(b.abs()));
    let mut x = vec![0.; k];
    let mut free: Vec<usize> = vec![];
    // Each round lowers the objective, so that no set comes back; the bound is for rounding.
    for _ in 0..3 * k + 10 {
        let gradient = |i: usize| b[i] - (0..k).map(|j| h[i * k + j] * x[j]).sum::<f64>();
        let held = (0..k).filter(|i| !free.contains(i)).map(|i| (i, gradient(i)));
        match held.max_by(|a, b| a.1.total_cmp(&b.1)) {
            Some((i, gradient)) if gradient > 1e-14 * scale => free.push(i),
            _ => break,
        }
        loop {
            let to = solve_subset(h, b, &free);
            // As far towards the solution as no coefficient turns negative.
            let ways = free.iter().zip(&to).filter(|(_, to)| **to <= 0.).map(|(&i, to)| x[i] / (x[i] - to));
            let way = ways.fold(1., f64::min);
            free.iter().zip(&to).for_each(|(&i, to)| x[i] += way * (to - x[i]));
            let blocked = |i: usize, to: f64| to <= 0. && x[i] <= 1e-15 * scale;
            let leave: Vec<usize> =
                free.iter().zip(&to).filter(|&(&i, &to)| blocked(i, to)).map(|(&i, _)| i).collect();
            leave.iter().for_each(|&i| x[i] = 0.);
            free.retain(|i| !leave.contains(i));
            if leave.is_empty() {
                break;
            }
        }
    }
    x
}

/// The solution of the rows and columns in `of`, by Cholesky's method.
fn solve_subset(h: &[f64], b: &[f64], of: &[usize]) -> Vec<f64> {
    let (k, n) = (b.len(), of.len());
    let mut l = vec![0.; n * n];
    let mut x = vec![0.; n];
    for i in 0..n {
        for j in 0..=i {
            let inner: f64 = (0..j).map(|t| l[i * n + t] * l[j * n + t]).sum();
            let rest = h[of[i] * k + of[j]] - inner;
            l[i * n + j] = if i == j { rest.sqrt() } else { rest / l[j * n + j] };
        }
        let known: f64 = (0..i).map(|t| l[i * n + t] * x[t]).sum();
        x[i] = (b[of[i]] - known) / l[i * n + i];
    }
    for i in (0..n).rev() {
        let known: f64 = (i + 1..n).map(|t| l[t * n + i] * x[t]).sum();
        x[i] = (x[i] - known) / l[i * n + i];
    }
    x
}
