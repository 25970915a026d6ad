//! The serial gold standard: Algorithm 1 of the paper in plain loops, on one thread, in f32 or f64.
//!
//! One observation at a time, or a minibatch whose observations all read the same weights. The
//! module's six parts are methods under their names in the paper; everything that is faster is held
//! to them.
//!
//! ```text
//! corrupt        x̃[n] ← corrupt(x[n])
//! hidden         y[h] = s(b[h] + Σₙ W[h, n] x̃[n])
//! reconstruct    z[n] = s(b'[n] + Σₕ W[h, n] y[h])
//! visible_bias   LN[n] = x[n] − z[n]                            b'[n] += ρ LN[n]/M
//! hidden_bias    LH[h] = y[h] (1 − y[h]) Σₙ W[h, n] LN[n]       b[h] += ρ LH[h]/M
//! weights        W[h, n] += ρ (LH[h] x̃[n] + LN[n] y[h])/M
//! ```
//!
//! | symbol | field or argument | shape |
//! |---|---|---|
//! | `W` | `weight` | `[n_hidden · n_visible]`, a row for each hidden unit |
//! | `b` | `bias` | `[n_hidden]`; `b'` in the paper's algorithm |
//! | `b'` | `visible_bias` | `[n_visible]`; `b` in the paper's algorithm |
//! | `x x̃` | `rows`, `corrupted` | `[M · n_visible]` |
//! | `ρ M` | `rate`, rows of a minibatch | |
//!
//! With `M > 1` the six parts run over the rows of the minibatch, and weights and biases change at
//! its end. Departures: `M` is the rows of the minibatch (in equation 1 it is those of the data
//! set, which would make the steps of Algorithm 1 vanish), `W` is read before the step in all
//! parts, and the learning rate does not change. The printed loss is a distance, and the printed
//! update the gradient of the cross-entropy; see [`dae`](crate::dae).
//!
//! Source: Kumar and Giaquinto, "Parallelizing denoising autoencoders", sections 2.2, 3.1 and 4.
//!
//! ```
//! use chandlery::dae::reference::Serial;
//! // One visible and one hidden unit, W = 0: y = z = ½, LN = 1 − ½, LH = 0.
//! let mut serial = Serial::<f64>::new(1, vec![0.], vec![0.], vec![0.]);
//! serial.step(&[1.], &[1.], 0.5);
//! // b' = ½ · ½, b = 0, W = ½ (0 · 1 + ½ · ½).
//! assert_eq!((serial.visible_bias[0], serial.bias[0], serial.weight[0]), (0.25, 0., 0.125));
//! ```
#![expect(
    clippy::needless_range_loop,
    reason = "loops as the paper writes them: an index into several arrays"
)]
use super::{Dae, DaeConfig};
use crate::feedforward::{Activation, ReconstructionLoss};
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::layers::Corruption;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

/// f32 or f64.
pub trait Real:
    Copy
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
{
    /// The nearest number.
    fn of(x: f64) -> Self;
    /// The number in double precision.
    fn wide(self) -> f64;
    /// `eˣ`
    fn exp(self) -> Self;
}

macro_rules! real {
    ($($t:ident),*) => {$(
        impl Real for $t {
            fn of(x: f64) -> Self {
                x as $t
            }
            fn wide(self) -> f64 {
                f64::from(self)
            }
            fn exp(self) -> Self {
                $t::exp(self)
            }
        }
    )*};
}
real!(f32, f64);

/// `1 / (1 + e⁻ˣ)`
fn s<T: Real>(x: T) -> T {
    T::of(1.) / (T::of(1.) + (-x).exp())
}

/// The network and the serial program that trains it.
#[derive(Debug, Clone, PartialEq)]
pub struct Serial<T> {
    n_visible: usize,
    /// `[n_hidden · n_visible]`, a row for each hidden unit.
    pub weight: Vec<T>,
    /// `[n_hidden]`
    pub bias: Vec<T>,
    /// `[n_visible]`
    pub visible_bias: Vec<T>,
    y: Vec<T>,
    z: Vec<T>,
    ln: Vec<T>,
    lh: Vec<T>,
}

/// Rows of a minibatch, of `x` or of another quantity.
fn rows<T>(of: &[T], width: usize) -> impl Iterator<Item = &[T]> {
    of.chunks_exact(width)
}

impl<T: Real> Serial<T> {
    /// From the parameters, in the shapes of the [module](self).
    ///
    /// # Panics
    /// When a length is 0 or is not that of its shape.
    pub fn new(n_visible: usize, weight: Vec<T>, bias: Vec<T>, visible_bias: Vec<T>) -> Self {
        assert!(n_visible > 0 && !bias.is_empty(), "Serial: sizes must be at least 1");
        let lengths = (weight.len(), visible_bias.len());
        assert_eq!(
            lengths,
            (bias.len() * n_visible, n_visible),
            "Serial: weight and visible_bias do not fit"
        );
        Self { n_visible, weight, bias, visible_bias, y: vec![], z: vec![], ln: vec![], lh: vec![] }
    }

    /// The parameters of an autoencoder of tied weights and sigmoid units.
    ///
    /// # Errors
    /// When it has other units, another loss or weights that are not tied: the paper's program has
    /// none of these.
    pub fn of(dae: &Dae) -> Result<Self> {
        let config = dae.config();
        let paper = (true, Activation::Sigmoid, Activation::Sigmoid, ReconstructionLoss::CrossEntropy);
        let got = (config.tied, config.hidden, config.output, config.loss);
        if got != paper {
            candle::bail!(
                "Serial: the autoencoder must have {paper:?} (tied, hidden, output, loss), got {got:?}"
            )
        }
        let values = |t: &Tensor| {
            let values = t.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
            Ok::<_, candle::Error>(values.into_iter().map(T::of).collect::<Vec<_>>())
        };
        let (weight, bias) = (values(dae.weight())?, values(dae.bias())?);
        Ok(Self::new(config.n_visible, weight, bias, values(dae.visible_bias())?))
    }

    /// The network as an autoencoder in f32.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn dae(&self, device: &Device) -> Result<Dae> {
        let (n_visible, n_hidden) = (self.n_visible, self.bias.len());
        let tensor = |values: &[T]| {
            let values: Vec<f32> = values.iter().map(|x| x.wide() as f32).collect();
            Tensor::new(values, device)
        };
        let weight = tensor(&self.weight)?.reshape((n_hidden, n_visible))?;
        let config = DaeConfig::new(n_visible, n_hidden);
        Dae::from_tensors(config, weight, tensor(&self.bias)?, tensor(&self.visible_bias)?, None)
    }

    /// Corrupted rows; their first value takes element `first` of the draws at `philox`.
    pub fn corrupt(rows: &[T], corruption: Corruption, philox: Philox, first: u64) -> Vec<T> {
        let one = |(i, x): (usize, &T)| {
            T::of(f64::from(corruption.of_element(x.wide() as f32, philox, first + i as u64)))
        };
        rows.iter().enumerate().map(one).collect()
    }

    /// One update from `x` and its corrupted version, `[M · n_visible]` each: for `M = 1` that of
    /// Algorithm 1.
    ///
    /// # Panics
    /// When the lengths differ, or are not those of whole rows.
    pub fn step(&mut self, x: &[T], corrupted: &[T], rate: T) {
        assert_eq!(x.len(), corrupted.len(), "Serial::step: rows and corrupted rows");
        assert_eq!(x.len() % self.n_visible, 0, "Serial::step: whole rows");
        let m = T::of((x.len() / self.n_visible) as f64);
        self.hidden(corrupted);
        self.reconstruct();
        // The hidden error reads the weights before the step, and no bias.
        self.visible_bias(x, rate / m);
        self.hidden_bias(rate / m);
        self.weights(corrupted, rate / m);
    }

    /// What the network makes of rows, `[M · n_visible]`.
    pub fn denoise(&mut self, rows: &[T]) -> &[T] {
        self.hidden(rows);
        self.reconstruct();
        &self.z
    }

    fn hidden(&mut self, corrupted: &[T]) {
        self.y.clear();
        for x in rows(corrupted, self.n_visible) {
            for (h, bias) in self.bias.iter().enumerate() {
                let mut sum = *bias;
                for n in 0..self.n_visible {
                    sum += self.weight[h * self.n_visible + n] * x[n];
                }
                self.y.push(s(sum));
            }
        }
    }

    fn reconstruct(&mut self) {
        self.z.clear();
        for y in rows(&self.y, self.bias.len()) {
            for (n, bias) in self.visible_bias.iter().enumerate() {
                let mut sum = *bias;
                for h in 0..self.bias.len() {
                    sum += self.weight[h * self.n_visible + n] * y[h];
                }
                self.z.push(s(sum));
            }
        }
    }

    fn visible_bias(&mut self, x: &[T], rate: T) {
        self.ln.clear();
        self.ln.extend(x.iter().zip(&self.z).map(|(x, z)| *x - *z));
        for ln in rows(&self.ln, self.n_visible) {
            for n in 0..self.n_visible {
                self.visible_bias[n] += rate * ln[n];
            }
        }
    }

    fn hidden_bias(&mut self, rate: T) {
        self.lh.clear();
        for (y, ln) in rows(&self.y, self.bias.len()).zip(rows(&self.ln, self.n_visible)) {
            for h in 0..self.bias.len() {
                let mut sum = T::of(0.);
                for n in 0..self.n_visible {
                    sum += self.weight[h * self.n_visible + n] * ln[n];
                }
                let lh = y[h] * (T::of(1.) - y[h]) * sum;
                self.bias[h] += rate * lh;
                self.lh.push(lh);
            }
        }
    }

    fn weights(&mut self, corrupted: &[T], rate: T) {
        let n_hidden = self.bias.len();
        for h in 0..n_hidden {
            for n in 0..self.n_visible {
                let mut sum = T::of(0.);
                for m in 0..self.y.len() / n_hidden {
                    let (of_h, of_n) = (m * n_hidden + h, m * self.n_visible + n);
                    sum += self.lh[of_h] * corrupted[of_n] + self.ln[of_n] * self.y[of_h];
                }
                self.weight[h * self.n_visible + n] += rate * sum;
            }
        }
    }
}
