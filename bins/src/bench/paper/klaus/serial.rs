//! The serial programs of the paper, row after row on the CPU, in f32 with the exponential in f64
//! as printed.
//!
//! | form | what | where |
//! |---|---|---|
//! | naive | a function for each operation on vectors, each with a new vector | section 1.3.1 |
//! | base | the functions written out in loops, with accumulators | figure 5 |
//! | loop | the same with eight steps of a loop at once | figure 7 |
//! | omp | the loops over units divided among threads, one after the other | figure 9 |
//!
//! Each has two levels, see [`Level`]. A pass forms the mean activations of all rows, and then for
//! each row the features, the outputs, both deltas with the sparsity term, and its share of the
//! gradients, which are summed over the rows as in equations 10 and 11. Decay and the cost itself
//! are no part of it, so that a pass over fewer rows takes exactly as much less work.
//!
//! Source: Klaus and Welles, 2014, algorithm 1, equations 1 to 12. The printed parts are the two
//! loops forward; the rest follows the equations in the same style.
use chandlery::sparse_autoencoder::CostConfig;
use rayon::prelude::*;
use std::hint::black_box;

/// Which of the programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Naive,
    Base,
    Loop,
    Omp,
}

/// How well the program is compiled.
///
/// In Rust a function cannot have another optimisation level than its crate. Where accumulators and
/// elements pass through memory, the compiler can keep none in registers and make no vectors, which
/// is most of what the flag `-O0` does to the paper's loops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Every sum passes through memory; the paper's `_0`.
    Unoptimised,
    /// As the compiler makes it; the paper's `_1` to `_3`.
    Optimised,
}

/// A pass: its parameters, and the gradients that it sums.
pub struct Program<'a> {
    n_visible: usize,
    n_hidden: usize,
    weight: &'a [f32],
    decoder: &'a [f32],
    bias: &'a [f32],
    visible_bias: &'a [f32],
    rho: f32,
    beta: f32,
    /// Sums over the rows, in the order of the parameters.
    weight_sum: Vec<f32>,
    decoder_sum: Vec<f32>,
    bias_sum: Vec<f32>,
    visible_sum: Vec<f32>,
}

impl<'a> Program<'a> {
    /// A pass with parameters in the order of `SparseAutoencoder::flat`; none where they are not as
    /// many.
    pub fn new((v, h): (usize, usize), cost: &CostConfig, theta: &'a [f32]) -> Option<Self> {
        let (weight, rest) = theta.split_at_checked(v * h)?;
        let (decoder, rest) = rest.split_at_checked(v * h)?;
        let (bias, visible_bias) = rest.split_at_checked(h)?;
        // Pages are there before the clock runs.
        let touched = |n: usize| {
            let mut sums = vec![1f32; n];
            sums.fill(0.);
            sums
        };
        (visible_bias.len() == v).then(|| Self {
            n_visible: v,
            n_hidden: h,
            weight,
            decoder,
            bias,
            visible_bias,
            rho: cost.sparsity_target as f32,
            beta: cost.sparsity_weight as f32,
            weight_sum: touched(v * h),
            decoder_sum: touched(v * h),
            bias_sum: touched(h),
            visible_sum: touched(v),
        })
    }

    /// A pass over `rows`, `[m, n_visible]`.
    pub fn pass(&mut self, form: Form, level: Level, rows: &[f32]) {
        match (form, level) {
            (Form::Naive, Level::Unoptimised) => self.naive::<true>(rows),
            (Form::Naive, Level::Optimised) => self.naive::<false>(rows),
            (Form::Base, Level::Unoptimised) => self.loops::<true, 1>(rows),
            (Form::Base, Level::Optimised) => self.loops::<false, 1>(rows),
            (Form::Loop, Level::Unoptimised) => self.loops::<true, 8>(rows),
            (Form::Loop, Level::Optimised) => self.loops::<false, 8>(rows),
            (Form::Omp, Level::Unoptimised) => self.threads::<true>(rows),
            (Form::Omp, Level::Optimised) => self.threads::<false>(rows),
        }
    }

    /// The summed gradients, in the order of the parameters.
    #[cfg(test)]
    fn gradient(&self) -> Vec<f32> {
        [&self.weight_sum[..], &self.decoder_sum, &self.bias_sum, &self.visible_sum].concat()
    }

    /// `β (−ρ/ρ̂ + (1 − ρ)/(1 − ρ̂))` for each feature.
    fn pull(&self, mean: &[f32]) -> Vec<f32> {
        mean.iter().map(|r| self.beta * (-self.rho / r + (1. - self.rho) / (1. - r))).collect()
    }

    /// The baseline, and with `STEP` of 8 the unrolled program.
    fn loops<const KEPT: bool, const STEP: usize>(&mut self, rows: &[f32]) {
        let (v, h) = (self.n_visible, self.n_hidden);
        let m = (rows.len() / v) as f32;
        let (mut a2, mut a3) = (vec![0f32; h], vec![0f32; v]);
        let (mut d2, mut d3) = (vec![0f32; h], vec![0f32; v]);
        let mut mean = vec![0f32; h];
        for x in rows.chunks_exact(v) {
            forward::<KEPT, STEP>(&mut a2, x, self.weight, self.bias);
            mean.iter_mut().zip(&a2).for_each(|(mean, a)| *mean = kept::<KEPT>(*mean + a / m));
        }
        let pull = self.pull(&mean);
        for x in rows.chunks_exact(v) {
            forward::<KEPT, STEP>(&mut a2, x, self.weight, self.bias);
            forward::<KEPT, STEP>(&mut a3, &a2, self.decoder, self.visible_bias);
            for ((d, &a), &x) in d3.iter_mut().zip(&a3).zip(x) {
                *d = output_delta::<KEPT>(a, x);
            }
            for (j, d) in d2.iter_mut().enumerate() {
                let sum = column::<KEPT, STEP>(&d3, self.decoder, h, j);
                *d = (sum + pull[j]) * a2[j] * (1. - a2[j]);
            }
            add_outer::<KEPT, STEP>(&mut self.weight_sum, &d2, x);
            add_outer::<KEPT, STEP>(&mut self.decoder_sum, &d3, &a2);
            add::<KEPT>(&mut self.bias_sum, &d2);
            add::<KEPT>(&mut self.visible_sum, &d3);
        }
    }

    /// The baseline with each loop over units divided among the threads of the pool, which wait for
    /// each other at its end.
    fn threads<const KEPT: bool>(&mut self, rows: &[f32]) {
        let (v, h) = (self.n_visible, self.n_hidden);
        let m = (rows.len() / v) as f32;
        let share = |n: usize| n.div_ceil(rayon::current_num_threads());
        let (mut a2, mut a3) = (vec![0f32; h], vec![0f32; v]);
        let (mut d2, mut d3) = (vec![0f32; h], vec![0f32; v]);
        let mut mean = vec![0f32; h];
        let parted = |out: &mut [f32], x: &[f32], weight: &[f32], bias: &[f32]| {
            let n = share(out.len());
            let parts = out.par_chunks_mut(n).zip(weight.par_chunks(n * x.len())).zip(bias.par_chunks(n));
            parts.for_each(|((out, weight), bias)| forward::<KEPT, 1>(out, x, weight, bias));
        };
        for x in rows.chunks_exact(v) {
            parted(&mut a2, x, self.weight, self.bias);
            mean.iter_mut().zip(&a2).for_each(|(mean, a)| *mean = kept::<KEPT>(*mean + a / m));
        }
        let pull = self.pull(&mean);
        for x in rows.chunks_exact(v) {
            parted(&mut a2, x, self.weight, self.bias);
            parted(&mut a3, &a2, self.decoder, self.visible_bias);
            for ((d, &a), &x) in d3.iter_mut().zip(&a3).zip(x) {
                *d = output_delta::<KEPT>(a, x);
            }
            let n = share(h);
            d2.par_chunks_mut(n).enumerate().for_each(|(part, d2)| {
                for (at, d) in d2.iter_mut().enumerate() {
                    let j = part * n + at;
                    let sum = column::<KEPT, 1>(&d3, self.decoder, h, j);
                    *d = (sum + pull[j]) * a2[j] * (1. - a2[j]);
                }
            });
            for (sums, d, a) in [(&mut self.weight_sum, &d2, x), (&mut self.decoder_sum, &d3, &a2[..])] {
                let n = share(d.len());
                let parts = sums.par_chunks_mut(n * a.len()).zip(d.par_chunks(n));
                parts.for_each(|(sums, d)| add_outer::<KEPT, 1>(sums, d, a));
            }
            add::<KEPT>(&mut self.bias_sum, &d2);
            add::<KEPT>(&mut self.visible_sum, &d3);
        }
    }

    /// A function for each operation, as in the Matlab code.
    fn naive<const KEPT: bool>(&mut self, rows: &[f32]) {
        let (v, h) = (self.n_visible, self.n_hidden);
        let m = (rows.len() / v) as f32;
        let mut mean = vec![0f32; h];
        for x in rows.chunks_exact(v) {
            let z2 = vector::sum::<KEPT>(&vector::product::<KEPT>(self.weight, x), self.bias);
            mean = vector::sum::<KEPT>(&mean, &vector::scaled::<KEPT>(1. / m, &vector::sigmoid(&z2)));
        }
        let pull = self.pull(&mean);
        for x in rows.chunks_exact(v) {
            let z2 = vector::sum::<KEPT>(&vector::product::<KEPT>(self.weight, x), self.bias);
            let a2 = vector::sigmoid(&z2);
            let z3 = vector::sum::<KEPT>(&vector::product::<KEPT>(self.decoder, &a2), self.visible_bias);
            let a3 = vector::sigmoid(&z3);
            let apart = vector::sum::<KEPT>(&a3, &vector::scaled::<KEPT>(-1., x));
            let d3 = vector::times::<KEPT>(&apart, &vector::slope::<KEPT>(&a3));
            let back = vector::product_with_columns::<KEPT>(self.decoder, &d3, h);
            let d2 = vector::times::<KEPT>(&vector::sum::<KEPT>(&back, &pull), &vector::slope::<KEPT>(&a2));
            add::<KEPT>(&mut self.weight_sum, &vector::outer::<KEPT>(&d2, x));
            add::<KEPT>(&mut self.decoder_sum, &vector::outer::<KEPT>(&d3, &a2));
            add::<KEPT>(&mut self.bias_sum, &d2);
            add::<KEPT>(&mut self.visible_sum, &d3);
        }
    }
}

/// A number that passes through memory, where `KEPT`.
#[inline(always)]
fn kept<const KEPT: bool>(x: f32) -> f32 {
    if KEPT { black_box(x) } else { x }
}

/// `(float)(1 / (1 + exp(-z)))`
#[inline(always)]
fn sigmoid(z: f32) -> f32 {
    (1. / (1. + (-f64::from(z)).exp())) as f32
}

/// `-(x - a) a (1 - a)`
#[inline(always)]
fn output_delta<const KEPT: bool>(a: f32, x: f32) -> f32 {
    kept::<KEPT>(a - x) * a * (1. - a)
}

/// `accum += a * b`, over `STEP` elements at once.
#[inline(always)]
fn dot<const KEPT: bool, const STEP: usize>(a: &[f32], b: &[f32]) -> f32 {
    let mut accum = 0f32;
    if STEP == 1 {
        for (&a, &b) in a.iter().zip(b) {
            accum = kept::<KEPT>(accum + kept::<KEPT>(a) * kept::<KEPT>(b));
        }
        return accum;
    }
    let (a_steps, b_steps) = (a.chunks_exact(STEP), b.chunks_exact(STEP));
    let rest = a_steps.remainder().iter().zip(b_steps.remainder());
    for (a, b) in a_steps.zip(b_steps) {
        let mut step = kept::<KEPT>(a[0]) * kept::<KEPT>(b[0]);
        for (&a, &b) in a[1..].iter().zip(&b[1..]) {
            step += kept::<KEPT>(a) * kept::<KEPT>(b);
        }
        accum = kept::<KEPT>(accum + step);
    }
    rest.fold(accum, |accum, (a, b)| accum + a * b)
}

/// `f(x wᵀ + b)` for the units of `out`.
#[inline(always)]
fn forward<const KEPT: bool, const STEP: usize>(out: &mut [f32], x: &[f32], weight: &[f32], bias: &[f32]) {
    for ((out, weight), &bias) in out.iter_mut().zip(weight.chunks_exact(x.len())).zip(bias) {
        *out = sigmoid(dot::<KEPT, STEP>(x, weight) + bias);
    }
}

/// The inner product of `d` with column `j` of a matrix of `width` columns.
#[inline(always)]
fn column<const KEPT: bool, const STEP: usize>(d: &[f32], matrix: &[f32], width: usize, j: usize) -> f32 {
    let mut accum = 0f32;
    let mut steps = d.chunks_exact(STEP);
    let mut rows = matrix.chunks_exact(width);
    for d in &mut steps {
        let mut step = 0f32;
        for (&d, row) in d.iter().zip(&mut rows) {
            step += kept::<KEPT>(d) * kept::<KEPT>(row[j]);
        }
        accum = kept::<KEPT>(accum + step);
    }
    steps.remainder().iter().zip(rows).fold(accum, |accum, (d, row)| accum + d * row[j])
}

/// `sums += dᵀ a`
#[inline(always)]
fn add_outer<const KEPT: bool, const STEP: usize>(sums: &mut [f32], d: &[f32], a: &[f32]) {
    for (sums, &d) in sums.chunks_exact_mut(a.len()).zip(d) {
        let mut steps = sums.chunks_exact_mut(STEP);
        let a_steps = a.chunks_exact(STEP);
        let rest = a_steps.remainder();
        for (sums, a) in (&mut steps).zip(a_steps) {
            for (sum, &a) in sums.iter_mut().zip(a) {
                *sum = kept::<KEPT>(*sum + kept::<KEPT>(d) * a);
            }
        }
        steps.into_remainder().iter_mut().zip(rest).for_each(|(sum, a)| *sum += d * a);
    }
}

/// `sums += d`
#[inline(always)]
fn add<const KEPT: bool>(sums: &mut [f32], d: &[f32]) {
    sums.iter_mut().zip(d).for_each(|(sum, &d)| *sum = kept::<KEPT>(*sum + d));
}

/// The functions of the naive program: each is called, and makes a vector.
mod vector {
    use super::{add_outer, column, dot, kept};

    #[inline(never)]
    pub fn product<const KEPT: bool>(matrix: &[f32], x: &[f32]) -> Vec<f32> {
        matrix.chunks_exact(x.len()).map(|row| dot::<KEPT, 1>(row, x)).collect()
    }

    #[inline(never)]
    pub fn product_with_columns<const KEPT: bool>(matrix: &[f32], d: &[f32], width: usize) -> Vec<f32> {
        (0..width).map(|j| column::<KEPT, 1>(d, matrix, width, j)).collect()
    }

    #[inline(never)]
    pub fn sum<const KEPT: bool>(a: &[f32], b: &[f32]) -> Vec<f32> {
        a.iter().zip(b).map(|(a, b)| kept::<KEPT>(a + b)).collect()
    }

    #[inline(never)]
    pub fn times<const KEPT: bool>(a: &[f32], b: &[f32]) -> Vec<f32> {
        a.iter().zip(b).map(|(a, b)| kept::<KEPT>(a * b)).collect()
    }

    #[inline(never)]
    pub fn scaled<const KEPT: bool>(factor: f32, a: &[f32]) -> Vec<f32> {
        a.iter().map(|a| kept::<KEPT>(factor * a)).collect()
    }

    #[inline(never)]
    pub fn sigmoid(z: &[f32]) -> Vec<f32> {
        z.iter().map(|&z| super::sigmoid(z)).collect()
    }

    /// `a (1 - a)`
    #[inline(never)]
    pub fn slope<const KEPT: bool>(a: &[f32]) -> Vec<f32> {
        a.iter().map(|a| kept::<KEPT>(a * (1. - a))).collect()
    }

    #[inline(never)]
    pub fn outer<const KEPT: bool>(d: &[f32], a: &[f32]) -> Vec<f32> {
        let mut out = vec![0f32; d.len() * a.len()];
        add_outer::<KEPT, 1>(&mut out, d, a);
        out
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::bench::sparse_autoencoder::Pass;
    use candle::Device::Cpu;
    use chandlery::Precision;
    use chandlery::sparse_autoencoder::SparseAutoencoderConfig;
    use chandlery::sparse_autoencoder::serial::serial_cost;

    #[test]
    fn all_forms_at_both_levels_sum_the_gradient_of_the_plain_loops() {
        // Sizes that eight divides, and that it does not.
        for (v, h, m) in [(16, 8, 12), (21, 13, 30), (5, 3, 7)] {
            let (theta, rows) = Pass::new(&Cpu, (v, h), m, Precision::F32).unwrap().on_host().unwrap();
            let cost = CostConfig::default();
            let wide = |x: &[f32]| -> Vec<f64> { x.iter().map(|&x| f64::from(x)).collect() };
            let config = SparseAutoencoderConfig::new(v, h);
            let (_, want) = serial_cost(&config, &cost, &wide(&theta), &wide(&rows)).unwrap();
            for form in [Form::Naive, Form::Base, Form::Loop, Form::Omp] {
                for level in [Level::Unoptimised, Level::Optimised] {
                    let mut program = Program::new((v, h), &cost, &theta).unwrap();
                    program.pass(form, level, &rows);
                    let decay =
                        |i: usize| if i < 2 * v * h { cost.weight_decay * f64::from(theta[i]) } else { 0. };
                    let mut apart = 0f64;
                    for (i, (&got, &want)) in program.gradient().iter().zip(&want).enumerate() {
                        apart = apart.max((f64::from(got) / m as f64 + decay(i) - want).abs());
                    }
                    let largest = want.iter().fold(0f64, |most, g| most.max(g.abs()));
                    // Some hundred roundings of f32 at most, in a sum of as many terms.
                    assert!(apart < 1e-5 * largest, "{form:?} {level:?} {v}-{h}-{v}: {apart} of {largest}");
                }
            }
        }
        assert!(Program::new((5, 3), &CostConfig::default(), &[0.; 37]).is_none());
    }
}
