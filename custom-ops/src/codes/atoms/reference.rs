//! The update of atoms computed directly from its equations: slow, in f64, with the error matrix
//! recomputed for each group.
use super::AtomUpdate;
use crate::codes::SparseCodes;
use candle::{DType, Result, Tensor};

/// The result of [`update_atoms`](super::update_atoms), computed in plain loops: dictionary and
/// values, of the types of the arguments.
///
/// # Errors
/// When a tensor cannot be read.
pub fn update_atoms_reference(
    dictionary: &Tensor,
    codes: &SparseCodes,
    error: &Tensor,
    update: &AtomUpdate,
) -> Result<(Tensor, Tensor)> {
    let read = |t: &Tensor| t.to_dtype(DType::F64)?.to_vec2::<f64>();
    let (mut d, mut x, error) = (read(dictionary)?, read(&codes.to_dense()?)?, read(error)?);
    let used = supports(codes)?;
    // What the codes stand for: E + X D. It stays, and E follows from it.
    let product =
        |x: &[f64], d: &[Vec<f64>], c: usize| -> f64 { x.iter().zip(d).map(|(x, d)| x * d[c]).sum() };
    let wanted: Vec<Vec<f64>> = error
        .iter()
        .zip(&x)
        .map(|(e, x)| e.iter().enumerate().map(|(c, e)| e + product(x, &d, c)).collect())
        .collect();
    let n = d.len();
    let mut first = update.n_fixed.min(n);
    while first < n {
        let last = n.min(first.saturating_add(update.group));
        let error: Vec<Vec<f64>> = wanted
            .iter()
            .zip(&x)
            .map(|(w, x)| w.iter().enumerate().map(|(c, w)| w - product(x, &d, c)).collect())
            .collect();
        let (old_d, old_x) = (d.clone(), x.clone());
        for j in first..last {
            let signals: Vec<usize> = (0..x.len()).filter(|&i| used[i].contains(&(j as u32))).collect();
            // F, row by row, and the coefficients of its rows.
            let f: Vec<Vec<f64>> = signals
                .iter()
                .map(|&i| error[i].iter().zip(&old_d[j]).map(|(e, d)| e + old_x[i][j] * d).collect())
                .collect();
            let mut x_j: Vec<f64> = signals.iter().map(|&i| old_x[i][j]).collect();
            for _ in 0..update.power_steps.max(1) {
                let mut g = vec![0.; d[j].len()];
                for (f, x) in f.iter().zip(&x_j) {
                    g.iter_mut().zip(f).for_each(|(g, f)| *g += x * f);
                }
                for (_, other) in old_d.iter().enumerate().filter(|&(l, _)| l != j) {
                    let like: f64 = other.iter().zip(&d[j]).map(|(a, b)| a * b).sum();
                    g.iter_mut()
                        .zip(other)
                        .for_each(|(g, other)| *g -= 2. * update.coherence_penalty * like * other);
                }
                let norm = g.iter().map(|g| g * g).sum::<f64>().sqrt();
                let good = norm > f64::from(f32::MIN_POSITIVE) && norm.is_finite();
                if signals.is_empty() || !good {
                    break;
                }
                g.iter_mut().for_each(|g| *g /= norm);
                let change = g.iter().zip(&d[j]).map(|(g, d)| (g - d).powi(2)).sum::<f64>().sqrt();
                d[j] = g;
                if update.power_steps == 0 {
                    break;
                }
                for (x, f) in x_j.iter_mut().zip(&f) {
                    *x = f.iter().zip(&d[j]).map(|(f, d)| f * d).sum();
                }
                if change <= update.tolerance {
                    break;
                }
            }
            signals.iter().zip(&x_j).for_each(|(&i, &x_ij)| x[i][j] = x_ij);
        }
        first = last;
    }
    let indices = codes.indices.to_vec2::<u32>()?;
    let values: Vec<Vec<f64>> = indices
        .iter()
        .zip(&used)
        .zip(&x)
        .map(|((indices, used), x)| {
            let entry = |(k, &atom): (usize, &u32)| if k < used.len() { x[atom as usize] } else { 0. };
            indices.iter().enumerate().map(entry).collect()
        })
        .collect();
    let device = dictionary.device();
    let back = |rows: Vec<Vec<f64>>| Tensor::new(rows, device)?.to_dtype(dictionary.dtype());
    Ok((back(d)?, back(values)?))
}

/// The atoms that each signal uses.
fn supports(codes: &SparseCodes) -> Result<Vec<Vec<u32>>> {
    let (indices, count) = (codes.indices.to_vec2::<u32>()?, codes.count.to_vec1::<u32>()?);
    Ok(indices.into_iter().zip(count).map(|(row, count)| row[..count as usize].to_vec()).collect())
}
