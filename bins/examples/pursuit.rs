//! Times the pursuits on natural 8×8 patches, and writes the patches so that
//! `bins/peers/pursuit.py` can time other programs on them.
//!
//! ```text
//! cargo run -p chandlery-bins --example pursuit -- --out FOLDER [--signals 100000] [--atoms 128,512] [--nonzero 8]
//! ```
//!
//! Prints one line per measurement: pursuit, atoms, type, threads, median and minimum µs per
//! signal, relative residual; and how many f32 supports equal those of f64.
use anyhow::{Context, Result};
use candle::{DType, Device, Tensor};
use chandlery_bins::arrays;
use chandlery_datasets::embedded::natural_images;
use chandlery_datasets::patches::PatchSampler;
use chandlery_datasets::preparation::remove_mean;
use chandlery_ops::codes::{Pursuit, SparseCodes, bomp, ols};
use clap::Parser;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Side of a patch.
const SIDE: usize = 8;
/// Atoms are patches with at least this deviation, so that none is noise made large.
const LEAST_DEVIATION: f32 = 0.02;

#[derive(Debug, Parser)]
struct Args {
    /// Folder for signals.npy and dictionary-N.npy.
    #[arg(long)]
    out: PathBuf,
    /// Number of patches to code.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    signals: u32,
    /// Numbers of atoms, several separated by commas.
    #[arg(long, value_delimiter = ',', default_values_t = [128, 512])]
    atoms: Vec<usize>,
    /// Number of atoms per patch.
    #[arg(long, default_value_t = 8)]
    nonzero: usize,
    /// Number of timed runs, after one warm-up run.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
}

type Coder = fn(&Tensor, &Tensor, &Pursuit) -> candle::Result<SparseCodes>;

fn main() -> Result<()> {
    let args = Args::parse();
    std::fs::create_dir_all(&args.out).with_context(|| format!("{}", args.out.display()))?;
    let signals = patches(args.signals, 0)?;
    save(&args.out.join("signals.npy"), &signals)?;
    let threads = std::env::var("RAYON_NUM_THREADS").unwrap_or_else(|_| "all".into());
    for &n in &args.atoms {
        let dictionary = atoms(n)?;
        save(&args.out.join(format!("dictionary-{n}.npy")), &dictionary)?;
        for (name, code) in [("bomp", bomp as Coder), ("ols", ols)] {
            let mut supports = vec![];
            for dtype in [DType::F32, DType::F64] {
                let (signals, dictionary) = (signals.to_dtype(dtype)?, dictionary.to_dtype(dtype)?);
                let mut times = vec![];
                let mut codes = code(&signals, &dictionary, &Pursuit::new(args.nonzero))?;
                for _ in 0..args.runs {
                    let start = Instant::now();
                    codes = code(&signals, &dictionary, &Pursuit::new(args.nonzero))?;
                    times.push(start.elapsed().as_secs_f64() / f64::from(args.signals) * 1e6);
                }
                times.sort_by(f64::total_cmp);
                let (median, least) = (times[times.len() / 2], times[0]);
                let left = relative_residual(&codes, &signals, &dictionary)?;
                println!(
                    "chandlery | {name} {} {threads} threads | n {n} | {median:.3} us | least {least:.3} | residual {left:.6}",
                    dtype.as_str()
                );
                supports.push(codes.indices.to_vec2::<u32>()?);
            }
            let same = supports[0].iter().zip(&supports[1]).filter(|(narrow, wide)| narrow == wide).count();
            let share = 100. * same as f64 / f64::from(args.signals);
            println!(
                "chandlery | {name} n {n} | {share:.3} % of the supports of f32 are those of f64, in order"
            );
        }
    }
    Ok(())
}

/// Patches at random places, each without its mean; f32.
fn patches(count: u32, seed: u64) -> Result<Tensor> {
    let sampler = PatchSampler::new(natural_images()?, SIDE, count as usize, seed)?;
    Ok(remove_mean(&sampler.draw(0..count, &Device::Cpu)?)?)
}

/// Patches of norm 1 that are not flat.
fn atoms(n: usize) -> Result<Tensor> {
    let candidates = patches(4 * n as u32, 1)?;
    let norms = candidates.sqr()?.sum(1)?.sqrt()?;
    let least = LEAST_DEVIATION * SIDE as f32;
    let kept = norms.to_vec1::<f32>()?.into_iter().zip(0u32..).filter(|(norm, _)| *norm > least);
    let kept: Vec<u32> = kept.map(|(_, row)| row).take(n).collect();
    anyhow::ensure!(kept.len() == n, "only {} of {} patches are not flat", kept.len(), 4 * n);
    let kept = Tensor::new(kept, &Device::Cpu)?;
    let norms = norms.index_select(&kept, 0)?.unsqueeze(1)?;
    Ok(candidates.index_select(&kept, 0)?.broadcast_div(&norms)?)
}

fn save(path: &Path, x: &Tensor) -> Result<()> {
    let mut block = Some(x.clone());
    arrays::write(path, x.dims2()?, || Ok(block.take()), None)
}

/// `‖Y − X D‖ / ‖Y‖` in f64.
fn relative_residual(codes: &SparseCodes, signals: &Tensor, dictionary: &Tensor) -> Result<f64> {
    let energy = |x: &Tensor| x.to_dtype(DType::F64)?.sqr()?.sum_all()?.to_scalar::<f64>();
    Ok((energy(&codes.residual(signals, dictionary)?)? / energy(signals)?).sqrt())
}
