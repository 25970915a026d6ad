//! Whether the dictionary that signals were made of is found again.
//!
//! ```text
//! y_i = Σ_{j ∈ I_i} x_ij d_j + noise      |I_i| = s atoms drawn at random, x_ij normal
//! d_j is found when 1 − |d_j·d̂| < .01 for some learned atom d̂
//! ```
//!
//! Source: Aharon, Elad and Bruckstein, "K-SVD: an algorithm for designing overcomplete
//! dictionaries for sparse representation", IEEE Trans. Signal Processing 54(11), 2006, section
//! V-A.
//!
//! ```
//! use chandlery::evaluation::recovery::{KnownDictionary, found};
//! # fn main() -> candle::Result<()> {
//! let task = KnownDictionary { n_atoms: 6, n_samples: 20, ..KnownDictionary::default() };
//! let (atoms, signals) = task.draw(7)?;
//! assert_eq!((atoms.dims(), signals.dims()), (&[6, 20][..], &[20, 20][..]));
//! // The true atoms find themselves, with either sign.
//! assert_eq!(found(&atoms, &atoms.neg()?)?, 1.);
//! # Ok(()) }
//! ```
use crate::check::{at_least_one, range};
use candle::{Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::normal;

/// `1 − |d·d̂|` below which an atom is found.
const DISTANCE: f64 = 0.01;

/// A dictionary at random, and signals of it. The default is the task of the source.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownDictionary {
    /// Atoms, at least 1. Default 50.
    pub n_atoms: usize,
    /// Numbers in a signal, at least 1. Default 20.
    pub n_features: usize,
    /// Signals, at least 1. Default 1,500.
    pub n_samples: usize,
    /// Atoms of a signal, 1 to `n_atoms`. Default 3.
    pub n_nonzero: usize,
    /// Power of the signals over that of the noise, in dB; infinite for none. Default 20.
    pub snr_db: f64,
}

impl Default for KnownDictionary {
    fn default() -> Self {
        Self { n_atoms: 50, n_features: 20, n_samples: 1500, n_nonzero: 3, snr_db: 20. }
    }
}

impl KnownDictionary {
    /// # Errors
    /// When a field is out of its range; the message names it.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "KnownDictionary";
        at_least_one(OP, "n_atoms", self.n_atoms)?;
        at_least_one(OP, "n_features", self.n_features)?;
        at_least_one(OP, "n_samples", self.n_samples)?;
        at_least_one(OP, "n_nonzero", self.n_nonzero)?;
        if self.n_nonzero > self.n_atoms {
            let (n, s) = (self.n_atoms, self.n_nonzero);
            candle::bail!("{OP}: n_nonzero must be at most {n}, the number of atoms, got {s}")
        }
        if self.snr_db != f64::INFINITY {
            range(OP, "snr_db", self.snr_db, "a number, or infinite", |_| true)?;
        }
        Ok(())
    }

    /// The atoms, `[n_atoms, n_features]` of length 1, and the signals, `[n_samples, n_features]`,
    /// both f32 on the CPU. Another seed gives others.
    ///
    /// # Errors
    /// When a field is out of its range.
    pub fn draw(&self, seed: u64) -> Result<(Tensor, Tensor)> {
        self.validate()?;
        let &Self { n_atoms: n, n_features: p, n_samples: m, n_nonzero: s, snr_db } = self;
        let cpu = &Device::Cpu;
        let directions = normal((n, p), cpu, Philox::new(seed, 0))?;
        let atoms = directions.broadcast_div(&directions.sqr()?.sum_keepdim(1)?.sqrt()?)?;
        let coefficients = normal((m, s), cpu, Philox::new(seed, 1))?.to_vec2::<f32>()?;
        let mut x = vec![0f32; m * n];
        for (i, (row, codes)) in coefficients.iter().zip(x.chunks_exact_mut(n)).enumerate() {
            let order = Philox::new(seed, 100 + i as u64).permutation(n);
            row.iter().zip(order).for_each(|(&c, j)| codes[j as usize] = c);
        }
        let clean = Tensor::from_vec(x, (m, n), cpu)?.matmul(&atoms)?;
        let noise = normal((m, p), cpu, Philox::new(seed, 2))?;
        let power = |t: &Tensor| -> Result<f64> { Ok(f64::from(t.sqr()?.mean_all()?.to_scalar::<f32>()?)) };
        let level = (power(&clean)? / power(&noise)?).sqrt() * 10f64.powf(-snr_db / 20.);
        Ok((atoms, (clean + (noise * level)?)?))
    }
}

/// The share of `atoms`, `[n_atoms, n_features]`, that `learned`, `[_, n_features]`, holds with
/// either sign; rows of both have length 1.
///
/// # Errors
/// When shapes do not fit.
pub fn found(atoms: &Tensor, learned: &Tensor) -> Result<f64> {
    let like = atoms.matmul(&learned.t()?)?.abs()?.max(1)?.to_vec1::<f32>()?;
    let hits = like.iter().filter(|&&like| 1. - f64::from(like) < DISTANCE).count();
    Ok(hits as f64 / like.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn noise_has_the_power_that_was_asked_for() {
        let power = |t: &Tensor| f64::from(t.sqr().unwrap().mean_all().unwrap().to_scalar::<f32>().unwrap());
        let with = |snr_db| KnownDictionary { snr_db, ..KnownDictionary::default() }.draw(3).unwrap();
        let ((atoms, clean), (same, noisy)) = (with(f64::INFINITY), with(10.));
        assert_eq!(atoms.to_vec2::<f32>().unwrap(), same.to_vec2::<f32>().unwrap());
        let ratio = power(&clean) / power(&(&noisy - &clean).unwrap());
        // Sums in f32 of 30,000 numbers.
        assert!((ratio - 10.).abs() < 0.01, "{ratio}");
    }

    #[test]
    fn an_atom_a_little_off_is_found_and_one_far_off_is_not() {
        let atoms = Tensor::new(&[[1f32, 0.], [0., 1.]], &Device::Cpu).unwrap();
        let at = |degrees: f32| [degrees.to_radians().cos(), degrees.to_radians().sin()];
        // cos 8° is .9903, cos 9° is .9877.
        let near = Tensor::new(&[at(8.), at(45.)], &Device::Cpu).unwrap();
        let far = Tensor::new(&[at(9.), at(45.)], &Device::Cpu).unwrap();
        assert_eq!((found(&atoms, &near).unwrap(), found(&atoms, &far).unwrap()), (0.5, 0.));
    }

    #[test]
    fn fields_out_of_range_are_named() {
        let message = |task: KnownDictionary| {
            task.draw(0).err().map(|e| e.to_string().lines().next().unwrap_or_default().to_owned())
        };
        let usual = KnownDictionary::default();
        let words = message(KnownDictionary { n_nonzero: 51, ..usual.clone() }).unwrap();
        assert_eq!(words, "KnownDictionary: n_nonzero must be at most 50, the number of atoms, got 51");
        assert!(message(KnownDictionary { snr_db: f64::NAN, ..usual }).unwrap().contains("snr_db"));
    }
}
