//! A kernel as a function of two operands, for [`CustomOp2`](candle::CustomOp2), which lends their
//! storages and wants that of the result.
use super::{Io, Kernel};
use candle::{CpuStorage, DType, Layout, Result, Shape};

/// A kernel that writes every entry of one new tensor from two operands.
pub(crate) struct Function<K> {
    pub op: &'static str,
    pub kernel: K,
    pub shape: Shape,
    /// f32 or f64.
    pub dtype: DType,
}

impl<K: Kernel> Function<K> {
    /// The result on the CPU; an operand is its name, its storage and its layout.
    ///
    /// # Errors
    /// When the kernel fails.
    pub(crate) fn on_cpu(
        &self,
        read: [(&'static str, &CpuStorage, &Layout); 2],
    ) -> Result<(CpuStorage, Shape)> {
        let n = self.shape.elem_count();
        let mut out = match self.dtype {
            DType::F32 => CpuStorage::F32(vec![0.; n]),
            _ => CpuStorage::F64(vec![0.; n]),
        };
        if n > 0 {
            let layout = Layout::contiguous(&self.shape);
            super::on_cpu(&self.kernel, Io::new(self.op, vec![(&mut out, &layout)], read.to_vec()))?;
        }
        Ok((out, self.shape.clone()))
    }

    /// The result on a GPU.
    ///
    /// # Errors
    /// When memory is short or the kernel fails.
    #[cfg(feature = "cuda")]
    pub(crate) fn on_gpu(
        &self,
        read: [(&'static str, &candle::CudaStorage, &Layout); 2],
    ) -> Result<(candle::CudaStorage, Shape)> {
        use candle::backend::{BackendDevice, BackendStorage};
        let device = read[0].1.device();
        // SAFETY: unset memory on a GPU, where only kernels see it; the one below writes every
        // entry.
        let mut out = unsafe { device.alloc_uninit(&self.shape, self.dtype) }?;
        if self.shape.elem_count() > 0 {
            let layout = Layout::contiguous(&self.shape);
            let io = Io::new(self.op, vec![(&mut out, &layout)], read.to_vec());
            self.kernel.cuda(&crate::core::cuda::Gpu::of(device)?, io)?;
        }
        Ok((out, self.shape.clone()))
    }
}
