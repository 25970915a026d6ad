//! How well a dictionary represents signals.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Group;
use chandlery_ops::arrays::elementwise::sqr;
use chandlery_ops::codes::SparseCodes;

/// What codes of signals came to.
#[derive(Debug, Clone)]
pub struct Figures {
    /// Root mean square error of a value, in the unit of the signals.
    pub rmse: f64,
    /// Mean number of atoms of a code.
    pub mean_count: f64,
    /// Of each atom, the sum of the squares of its coefficients.
    pub energy: Vec<f64>,
    /// Atoms in at least one code.
    pub used: usize,
}

/// Sums over blocks of signals and their codes.
#[derive(Debug, Clone)]
pub struct Measure {
    squares: f64,
    n_values: usize,
    count: u64,
    n_rows: usize,
    energy: Vec<f64>,
}

impl Measure {
    /// For a dictionary of `n_atoms`.
    pub fn new(n_atoms: usize) -> Self {
        Self { squares: 0., n_values: 0, count: 0, n_rows: 0, energy: vec![0.; n_atoms] }
    }

    /// Counts the codes of a block of signals, `[b, n_features]`, over atoms,
    /// `[n_atoms, n_features]`. Waits for the device.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn add(&mut self, signals: &Tensor, codes: &SparseCodes, atoms: &Tensor) -> Result<()> {
        let residual = codes.residual(signals, atoms)?.to_dtype(DType::F64)?;
        self.squares += sqr(&residual)?.sum_all()?.to_scalar::<f64>()?;
        self.n_values += residual.elem_count();
        let counts = host(&codes.count)?.to_vec1::<u32>()?;
        self.n_rows += counts.len();
        self.count += counts.iter().map(|&count| u64::from(count)).sum::<u64>();
        add_energy(&mut self.energy, codes)
    }

    /// What all ranks of a group have measured, each of its own signals, on every rank; `device` is
    /// that of the rank. Waits for it.
    ///
    /// # Errors
    /// When ranks measured other dictionaries, or one is gone.
    pub fn joined(self, group: &Group, device: &Device) -> Result<Self> {
        let Self { squares, n_values, count, n_rows, energy } = self;
        let numbers = [&[squares, n_values as f64, count as f64, n_rows as f64], &energy[..]].concat();
        let numbers = Tensor::new(&numbers[..], device)?;
        group.all_reduce_(&numbers)?;
        let numbers = numbers.to_vec1::<f64>()?;
        let Some((&[squares, n_values, count, n_rows], energy)) = numbers.split_first_chunk() else {
            candle::bail!("Measure: there must be at least 4 numbers, got {}", numbers.len())
        };
        let (n_values, count, n_rows) = (n_values as usize, count as u64, n_rows as usize);
        Ok(Self { squares, n_values, count, n_rows, energy: energy.to_vec() })
    }

    /// The figures of all blocks.
    pub fn figures(self) -> Figures {
        Figures {
            rmse: (self.squares / self.n_values.max(1) as f64).sqrt(),
            mean_count: self.count as f64 / self.n_rows.max(1) as f64,
            used: self.energy.iter().filter(|&&energy| energy > 0.).count(),
            energy: self.energy,
        }
    }
}

/// Of each atom, the sum of the squares of its coefficients: `[n_atoms]`. Waits for the device.
///
/// # Errors
/// When the codes cannot be copied to the host.
pub fn energy_of(codes: &SparseCodes) -> Result<Vec<f64>> {
    let mut energy = vec![0.; codes.n_atoms];
    add_energy(&mut energy, codes)?;
    Ok(energy)
}

fn add_energy(sums: &mut [f64], codes: &SparseCodes) -> Result<()> {
    let indices = host(&codes.indices)?.to_vec1::<u32>()?;
    let values = host(&codes.values)?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
    // Entries beyond the count have value 0.
    for (atom, value) in indices.into_iter().zip(values) {
        if let Some(energy) = sums.get_mut(atom as usize) {
            *energy += value * value;
        }
    }
    Ok(())
}

fn host(t: &Tensor) -> candle::Result<Tensor> {
    t.to_device(&Device::Cpu)?.flatten_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use candle::Device::Cpu;

    #[test]
    fn a_measure_is_the_one_done_by_hand() {
        // Two atoms along the axes of three; signals (3, 4, 0) and (0, 2, 1) with one atom each.
        let atoms = Tensor::new(&[[1f32, 0., 0.], [0., 1., 0.]], &Cpu).unwrap();
        let signals = Tensor::new(&[[3f32, 4., 0.], [0., 2., 1.]], &Cpu).unwrap();
        let codes =
            chandlery_ops::codes::bomp(&signals, &atoms, &chandlery_ops::codes::Pursuit::new(1)).unwrap();
        let mut measure = Measure::new(2);
        measure.add(&signals, &codes, &atoms).unwrap();
        let figures = measure.figures();
        // Left over: 3² of the first, 1² of the second, over six values.
        assert!((figures.rmse - (10f64 / 6.).sqrt()).abs() < 1e-6);
        assert_eq!((figures.mean_count, figures.used), (1., 1));
        assert_eq!(figures.energy, [0., 20.]);
        assert_eq!(energy_of(&codes).unwrap(), [0., 20.]);
    }
}
