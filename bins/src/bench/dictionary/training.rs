//! An iteration of the update rules and a pass of the online method, on the same patches from the
//! same start.
use super::pursuit::{self, CACHE_BYTES_PER_SECOND, Size};
use super::{DictionaryArgs, Row, data};
use crate::bench::floor::Gpu;
use crate::bench::place::Place;
use crate::bench::table::{Column, Table, or_dash};
use crate::bench::timing::{Seconds, time};
use crate::report::Report;
use anyhow::Result;
use candle::{DType, Device, Tensor};
use chandlery::dictionary::{
    Dictionary, DictionaryConfig, DictionaryTrainConfig, DictionaryTrainer, OnlineDictionaryTrainConfig,
    OnlineDictionaryTrainer, PursuitMethod, SparseCoder, UpdateRule,
};
use chandlery::{FullBatchTrainer, Philox};
use chandlery_ops::arrays::gather_rows;

/// The size that peers were measured at: signals, atoms, side of a patch, atoms of a code, passes,
/// rows of a minibatch.
const M: usize = 12_288;
const N: usize = 256;
pub const SIDE: usize = 8;
const S: usize = 10;
const PASSES: usize = 10;
const BATCH: usize = 512;

/// Iterations that are timed: signals, atoms, atoms of a code, and how.
#[derive(Debug, Clone, Copy)]
pub struct Task {
    pub m: usize,
    pub n: usize,
    pub s: usize,
    pub rule: UpdateRule,
    /// ñ.
    pub group: usize,
}

impl Task {
    /// What an iteration of any rule with a pursuit and a sweep over the atoms costs an H200 at the
    /// least, in seconds: that pursuit, then the larger of arithmetic and cache.
    ///
    /// Arithmetic: the error matrix and for each atom `F·x`, 4 FLOP for each coefficient and value
    /// of its signal. Second-level cache: an atom reads the error of each signal that uses it.
    pub fn floor(&self, gpu: &Gpu) -> f64 {
        let p = SIDE * SIDE;
        let values = (self.m * self.s * p) as f64;
        let update = (4. * values / gpu.f32_flops).max(4. * values / CACHE_BYTES_PER_SECOND);
        pursuit::floor(Size { m: self.m, n: self.n, p, s: self.s }, gpu) + update
    }
}

/// Columns of the rules.
const COLUMNS: [Column<Row>; 8] = [
    Column("", -34, |row| row.task.clone()),
    Column("on", -26, |row| row.device.clone()),
    Column("median ms", 10, |row| format!("{:.3}", row.ms)),
    Column("min ms", 10, |row| format!("{:.3}", row.ms_min)),
    Column("max ms", 10, |row| format!("{:.3}", row.ms_max)),
    Column("OMP", 9, |row| or_dash(row.error, 4)),
    Column("OLS", 9, |row| or_dash(row.error_ols, 4)),
    Column("floor ms", 9, |row| or_dash(row.floor_ms, 4)),
];

pub fn run(args: &DictionaryArgs, device: &Device, report: &Report, rows: &mut Vec<Row>) -> Result<()> {
    report.line(&format!(
        "training on {M} natural patches in grey levels, n {N}, s {S}: time of an iteration or a pass; RMSE after {PASSES} passes with OMP and OLS codes; \
         floor: of an H200"
    ))?;
    let (signals, atoms) = (data::patches(M, SIDE, &Device::Cpu)?, data::atoms(N, SIDE, &Device::Cpu)?);
    if let Some(folder) = &args.dump {
        data::dump(folder, &signals, &atoms)?;
        report.line(&format!("signals.npy and start.npy in {}", folder.display()))?;
    }
    let [omp, ols] = errors(&signals, &atoms)?;
    let mut table = Table::new(report, &COLUMNS)?;
    report.line(&format!("{:<34} {:<59} {omp:>9.4} {ols:>9.4}", "first dictionary", ""))?;
    for place in Place::all(device, !args.no_single)? {
        let (signals, atoms) = (signals.to_device(&place.device)?, atoms.to_device(&place.device)?);
        for (name, rule, method) in [
            ("ak-svd, omp", Some(UpdateRule::AkSvd), PursuitMethod::Omp),
            ("ak-svd, ols", Some(UpdateRule::AkSvd), PursuitMethod::Ols),
            ("k-svd, omp", Some(UpdateRule::Ksvd), PursuitMethod::Omp),
            ("online, omp, batches of 512", None, PursuitMethod::Omp),
            ("online, ols, batches of 512", None, PursuitMethod::Ols),
        ] {
            let coder = SparseCoder::new(method, S);
            let (ms, learned) = place.run(|| match rule {
                Some(rule) => batch(&place, args.timing.repeats, &signals, &atoms, rule, coder),
                None => online(&place, args.timing.repeats, &signals, &atoms, coder),
            })?;
            let [omp, ols] = errors(&signals, &learned)?;
            let floor = rule.map(|rule| Task { m: M, n: N, s: S, rule, group: N }.floor(&Gpu::H200));
            table.add(Row {
                error: Some(omp),
                error_ols: Some(ols),
                floor_ms: floor.map(|seconds| 1e3 * seconds),
                ..Row::new(&place, name.to_owned(), Size { m: M, n: N, p: SIDE * SIDE, s: S }, ms)
            })?;
        }
    }
    rows.extend(table.into_rows());
    Ok(())
}

/// Milliseconds an iteration, and the atoms after all passes.
fn batch(
    place: &Place,
    repeats: u32,
    signals: &Tensor,
    atoms: &Tensor,
    rule: UpdateRule,
    coder: SparseCoder,
) -> Result<(Seconds, Tensor)> {
    let config = DictionaryTrainConfig { rule, ..DictionaryTrainConfig::default() };
    let mut learned = atoms.clone();
    let ms = time(&place.device, repeats, || {
        let mut trainer =
            DictionaryTrainer::new(dictionary(atoms, &coder)?, signals, config.clone(), Philox::new(0, 0))?;
        for _ in 0..PASSES {
            trainer.step()?;
        }
        learned = trainer.best().atoms().clone();
        Ok(())
    })?;
    // The trainer codes once more than it iterates.
    Ok((ms.times(1e3 / PASSES as f64), learned))
}

/// Milliseconds a pass, and the atoms after all passes.
fn online(
    place: &Place,
    repeats: u32,
    signals: &Tensor,
    atoms: &Tensor,
    coder: SparseCoder,
) -> Result<(Seconds, Tensor)> {
    let config = OnlineDictionaryTrainConfig::default();
    let mut learned = atoms.clone();
    let ms = time(&place.device, repeats, || {
        let mut trainer =
            OnlineDictionaryTrainer::new(dictionary(atoms, &coder)?, config.clone(), Philox::new(0, 0))?;
        for pass in 0..PASSES {
            // Each pass in an order of its own, as a feed has it.
            let order = Philox::new(1, pass as u64).permutation(M);
            for batch in order.chunks_exact(BATCH) {
                let batch = gather_rows(signals, batch)?;
                trainer.partial_fit(&batch)?;
            }
        }
        learned = trainer.dictionary().atoms().clone();
        Ok(())
    })?;
    Ok((ms.times(1e3 / PASSES as f64), learned))
}

/// A dictionary for the codes that it is trained with.
fn dictionary(atoms: &Tensor, coder: &SparseCoder) -> candle::Result<Dictionary> {
    let (n, p) = atoms.dims2()?;
    let config = DictionaryConfig { method: coder.method, ..DictionaryConfig::new(n, p, coder.n_nonzero) };
    Dictionary::from_tensor(config, atoms.clone())
}

/// Root mean square errors with OMP and with OLS codes.
fn errors(signals: &Tensor, atoms: &Tensor) -> Result<[f64; 2]> {
    let error = |method| -> Result<f64> {
        let coder = SparseCoder::new(method, S);
        let atoms = atoms.to_device(signals.device())?;
        let residual = coder.encode(signals, &atoms)?.residual(signals, &atoms)?.to_dtype(DType::F64)?;
        Ok(residual.sqr()?.mean_all()?.to_scalar::<f64>()?.sqrt())
    };
    Ok([error(PursuitMethod::Omp)?, error(PursuitMethod::Ols)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_of_an_iteration_is_that_of_the_arithmetic_done_by_hand() {
        // Rows of the Gram matrix: 4 · 12288 · 256 · 9 / 5.4·10¹² = 21.0 µs; errors: 4 · 12288 · 10
        // · 64 / 5.4·10¹² = 5.8 µs.
        let task = Task { m: M, n: N, s: S, rule: UpdateRule::AkSvd, group: N };
        assert!((task.floor(&Gpu::H200) - 26.8e-6).abs() < 5e-8);
    }
}
