//! What sparse codes stand for, on CUDA.
use super::own;
use super::products::a_warp_each;
use crate::cuda::{Operand, count, function};
use crate::pursuit::SparseCodes;
use candle::cuda::cudarc::driver::{CudaSlice, DeviceRepr, PushKernelArg};
use candle::cuda::{CudaDType, CudaDevice, WrapErr};
use candle::{DType, Result, Tensor};

const OP: &str = "SparseCodes";

/// `[m, n_atoms]` with the codes in it.
pub(in crate::pursuit) fn to_dense(codes: &SparseCodes, device: &CudaDevice) -> Result<Tensor> {
    match codes.values.dtype() {
        DType::F64 => to_dense_as::<f64>(codes, device, "to_dense_f64"),
        _ => to_dense_as::<f32>(codes, device, "to_dense_f32"),
    }
}

fn to_dense_as<T: CudaDType + DeviceRepr>(
    codes: &SparseCodes,
    device: &CudaDevice,
    kernel: &str,
) -> Result<Tensor> {
    let (m, s) = codes.indices.dims2()?;
    let n = codes.n_atoms;
    if m * n == 0 {
        return Tensor::zeros((m, n), codes.values.dtype(), codes.values.device());
    }
    // SAFETY: left unset; the kernel writes every entry.
    let mut dense: CudaSlice<T> = unsafe { device.alloc(m * n) }?;
    {
        let (indices, values) = (codes.indices.contiguous()?, codes.values.contiguous()?);
        let (indices, values) = (Operand::new(&indices), Operand::new(&values));
        let (indices, values) = (indices.view::<u32>(OP)?, values.view::<T>(OP)?);
        let (n, s) = (count(OP, n)?, count(OP, s)?);
        let function = function(device, "codes", kernel)?;
        let mut launch = function.builder();
        launch.arg(&indices).arg(&values).arg(&mut dense).arg(&m).arg(&n).arg(&s);
        // SAFETY: (const unsigned*, const T*, T*, size_t, unsigned, unsigned): codes are [m, s] and dense [m, n]; the kernel
        // passes by an index that is not below n.
        unsafe { launch.launch(a_warp_each(m)) }.w()?;
    }
    own(device, dense, (m, n), &codes.values)
}

/// `X D`, or with `signals` `Y − X D`; shapes and types were checked.
pub(in crate::pursuit) fn reconstruct(
    codes: &SparseCodes,
    signals: Option<&Tensor>,
    dictionary: &Tensor,
    device: &CudaDevice,
) -> Result<Tensor> {
    match codes.values.dtype() {
        DType::F64 => reconstruct_as::<f64>(codes, signals, dictionary, device, "reconstruct_f64"),
        _ => reconstruct_as::<f32>(codes, signals, dictionary, device, "reconstruct_f32"),
    }
}

fn reconstruct_as<T: CudaDType + DeviceRepr>(
    codes: &SparseCodes,
    signals: Option<&Tensor>,
    dictionary: &Tensor,
    device: &CudaDevice,
    kernel: &str,
) -> Result<Tensor> {
    let (m, s) = codes.indices.dims2()?;
    let (n, p) = dictionary.dims2()?;
    if m * p == 0 {
        return Tensor::zeros((m, p), codes.values.dtype(), codes.values.device());
    }
    // SAFETY: left unset; the kernel writes every entry.
    let mut out: CudaSlice<T> = unsafe { device.alloc(m * p) }?;
    {
        let (indices, values) = (codes.indices.contiguous()?, codes.values.contiguous()?);
        let dictionary = dictionary.contiguous()?;
        let (indices, values, dictionary) =
            (Operand::new(&indices), Operand::new(&values), Operand::new(&dictionary));
        let (indices, values) = (indices.view::<u32>(OP)?, values.view::<T>(OP)?);
        let dictionary = dictionary.view::<T>(OP)?;
        let signals = signals.map(Tensor::contiguous).transpose()?;
        let signals = signals.as_ref().map(Operand::new);
        let signals = signals.as_ref().map(|signals| signals.view::<T>(OP)).transpose()?;
        let (n, s, p) = (count(OP, n)?, count(OP, s)?, count(OP, p)?);
        // Lanes of a signal: as many as it has samples, up to a warp.
        let lanes = p.next_power_of_two().clamp(1, 32);
        let function = function(device, "codes", kernel)?;
        let mut launch = function.builder();
        launch.arg(&indices).arg(&values).arg(&dictionary);
        match &signals {
            Some(signals) => launch.arg(signals),
            None => launch.arg(&0u64),
        };
        launch.arg(&mut out).arg(&m).arg(&n).arg(&s).arg(&p).arg(&lanes);
        // SAFETY: (const unsigned*, const T* × 3, T*, size_t, unsigned × 4): codes are [m, s], the dictionary [n, p], signals
        // null or [m, p], out [m, p]; the kernel passes by an index that is not below n.
        unsafe { launch.launch(a_warp_each(m.div_ceil(32 / lanes as usize))) }.w()?;
    }
    own(device, out, (m, p), &codes.values)
}
