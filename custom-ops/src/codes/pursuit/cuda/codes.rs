//! Sparse codes as dense rows, and their product with a dictionary: the launches of
//! `kernels/codes/codes.cu`.
use super::{suffix, warps};
use crate::codes::pursuit::codes::Codes;
use crate::core::cuda::Gpu;
use crate::core::op::Io;
use candle::cuda::CudaDType;
use candle::{CudaStorage, Result};

const FILE: &str = "codes";

/// Writes `out`, `[m, n]`, from indices and values.
pub(in crate::codes::pursuit) fn to_dense<T: CudaDType>(
    codes: Codes,
    gpu: &Gpu,
    io: Io<'_, CudaStorage>,
) -> Result<()> {
    let Codes { op, m, n, s } = codes;
    let ([out], [indices, values]) = io.parts()?;
    let (mut out, indices, values) =
        (out.elements::<T>()?, indices.elements::<u32>()?, values.elements::<T>()?);
    let launch = gpu.launch(op, FILE, &format!("to_dense_{}", suffix::<T>()))?;
    let launch = launch.read(&indices).read(&values).write(&mut out).num(m).count(n).count(s);
    // SAFETY: (const unsigned*, const T*, T*, size_t, unsigned, unsigned): codes are [m, s] and
    // `out` is [m, n], checked by `SparseCodes`; the kernel ignores an index that is not below n.
    unsafe { warps(launch, m).go() }
}

/// Writes `out`, `[m, p]`: `X D`, or `Y − X D` where there are signals.
pub(in crate::codes::pursuit) fn add_rows<T: CudaDType>(
    codes: Codes,
    p: usize,
    gpu: &Gpu,
    io: Io<'_, CudaStorage>,
) -> Result<()> {
    let Codes { op, m, n, s } = codes;
    let ([out], [indices, values, dictionary, signals]) = io.parts()?;
    let (mut out, indices, values) =
        (out.elements::<T>()?, indices.elements::<u32>()?, values.elements::<T>()?);
    let (dictionary, signals) = (dictionary.elements::<T>()?, signals.maybe::<T>()?);
    // Lanes of a signal: as many as it has samples, up to a warp.
    let lanes = p.next_power_of_two().clamp(1, 32);
    let launch = gpu.launch(op, FILE, &format!("reconstruct_{}", suffix::<T>()))?;
    let launch = launch.read(&indices).read(&values).read(&dictionary).maybe(&signals).write(&mut out);
    let launch = launch.num(m).count(n).count(s).count(p).count(lanes);
    // SAFETY: (const unsigned*, const T* × 3, T*, size_t, unsigned × 4): codes are [m, s], the
    // dictionary [n, p], signals null or [m, p], `out` [m, p], checked by `SparseCodes`; the kernel
    // ignores an index that is not below n.
    unsafe { warps(launch, m.div_ceil(32 / lanes)).go() }
}
