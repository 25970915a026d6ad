//! Random patches of planes, for training.
use super::denoise::plane_grid;
use candle::{Device, Result, Tensor};
use chandlery_ops::Philox;

/// `n` patches of `side`×`side` pixels drawn without replacement from all patches of all planes, or
/// all patches if there are fewer: `[n, side²]` f32 on the planes' device, in the order of the
/// planes, by lines.
///
/// Every patch of every plane is equally likely; the same `philox` draws the same patches. Memory:
/// that of the patches and of one plane.
///
/// # Errors
/// When there is no plane, one is not `[height, width]` f32 or smaller than a patch, `n` is 0, or
/// there are more than 2³² patches.
pub fn random_patches(planes: &[Tensor], side: usize, n: usize, philox: Philox) -> Result<Tensor> {
    crate::check::at_least_one("random_patches", "n", n)?;
    let Some(first) = planes.first() else {
        candle::bail!("random_patches: there must be at least 1 plane, got none")
    };
    let grids = planes
        .iter()
        .map(|plane| plane_grid("random_patches", plane, side, 1))
        .collect::<Result<Vec<_>>>()?;
    let total: usize = grids.iter().map(|grid| grid.n_patches()).sum();
    if total as u64 > 1 << 32 {
        candle::bail!("random_patches: planes must have at most 2^32 patches together, got {total}")
    }
    let mut chosen: Vec<usize> = match n < total {
        true => philox.sample(total, n).into_iter().map(|i| i as usize).collect(),
        false => (0..total).collect(),
    };
    chosen.sort_unstable();
    let mut rows = Vec::with_capacity(chosen.len() * side * side);
    let (mut before, mut chosen) = (0, chosen.into_iter().peekable());
    for (plane, grid) in planes.iter().zip(&grids) {
        let width = plane.dim(1)?;
        let pixels = plane.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
        while let Some(index) = chosen.next_if(|&index| index < before + grid.n_patches()) {
            let (top, left) = ((index - before) / grid.lefts().len(), (index - before) % grid.lefts().len());
            for u in 0..side {
                let start = (top + u) * width + left;
                rows.extend_from_slice(&pixels[start..start + side]);
            }
        }
        before += grid.n_patches();
    }
    let n_rows = rows.len() / (side * side);
    Tensor::from_vec(rows, (n_rows, side * side), first.device())
}
