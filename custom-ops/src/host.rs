//! Operands of the CPU twins as slices.
use candle::{CpuStorage, Layout, Result, Storage, StorageRef, Tensor, WithDType};

/// The elements that a contiguous layout covers.
pub(crate) fn elements<'a, T: WithDType>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    Ok(&storage.as_slice::<T>()?[layout.start_offset()..][..layout.shape().elem_count()])
}

/// The elements of a layout, which must be contiguous.
pub(crate) fn contiguous<'a, T: WithDType>(
    storage: &'a CpuStorage,
    layout: &Layout,
    op: &'static str,
) -> Result<&'a [T]> {
    let (start, end) = layout.contiguous_offsets().ok_or(candle::Error::RequiresContiguous { op })?;
    Ok(&storage.as_slice::<T>()?[start..end])
}

/// A tensor that an op keeps beside the operands candle hands over, read-locked while this lives.
///
/// It must not share storage with the op's destination, whose lock is already held for writing.
pub(crate) struct Operand<'a> {
    storage: StorageRef<'a>,
    layout: &'a Layout,
}

impl<'a> Operand<'a> {
    pub(crate) fn new(tensor: &'a Tensor) -> Self {
        let (storage, layout) = tensor.storage_and_layout();
        Self { storage, layout }
    }

    /// The elements of the tensor, which must be contiguous and on the CPU.
    pub(crate) fn elements<T: WithDType>(&self, op: &'static str) -> Result<&[T]> {
        match &*self.storage {
            Storage::Cpu(storage) => contiguous(storage, self.layout, op),
            _ => candle::bail!("{op}: every operand must be on the CPU"),
        }
    }
}
