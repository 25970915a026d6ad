//! The signals of the benchmarks, and the files that peers read.
use crate::arrays;
use anyhow::{Context, Result};
use candle::{Device, Tensor};
use chandlery::Philox;
use chandlery::dictionary::{Init, init};
use chandlery_datasets::embedded::natural_images;
use chandlery_datasets::patches::PatchSampler;
use chandlery_datasets::preparation::remove_mean;
use std::path::Path;

/// The seed of everything here.
const SEED: u64 = 16;

/// Patches of the built-in photographs without their means, in grey levels: `[m, side²]` f32.
pub fn patches(m: usize, side: usize, device: &Device) -> Result<Tensor> {
    let sampler = PatchSampler::new(natural_images()?, side, m, SEED)?;
    let patches = remove_mean(&sampler.draw(0..m as u32, &Device::Cpu)?)?;
    Ok((patches * 255.)?.to_device(device)?)
}

/// `n` other patches as atoms of length 1, none of them flat or like another.
pub fn atoms(n: usize, side: usize, device: &Device) -> Result<Tensor> {
    let sampler = PatchSampler::new(natural_images()?, side, 4 * n, SEED + 1)?;
    let rows = remove_mean(&sampler.draw(0..4 * n as u32, &Device::Cpu)?)?;
    Ok(init(&Init::RandomSignals, n, &rows, Philox::new(SEED, 0))?.to_device(device)?)
}

/// Writes what training works on, for peers.
pub fn dump(folder: &Path, signals: &Tensor, atoms: &Tensor) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("--dump {}: cannot make", folder.display()))?;
    for (name, t) in [("signals.npy", signals), ("start.npy", atoms)] {
        let mut once = Some(t.clone());
        arrays::write(&folder.join(name), t.dims2()?, || Ok(once.take()), None)?;
    }
    Ok(())
}
