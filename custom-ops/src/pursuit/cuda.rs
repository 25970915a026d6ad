//! The pursuits on CUDA.
use super::job::Job;
use super::{SparseCodes, reference};
use candle::cuda::CudaDevice;
use candle::{Device, Result};

/// The codes of a job whose tensors are on `device`.
pub(super) fn run(job: &Job, device: &CudaDevice) -> Result<SparseCodes> {
    let codes = reference::run(job)?;
    let to = |x: candle::Tensor| x.to_device(&Device::Cuda(device.clone()));
    Ok(SparseCodes {
        indices: to(codes.indices)?,
        values: to(codes.values)?,
        count: to(codes.count)?,
        ..codes
    })
}
