//! The single path from tensors to the code of a device.
//!
//! An op names the tensors that it writes and reads, and passes a [`Kernel`] with the code for both
//! devices:
//!
//! ```text
//! operands(OP).write("sums", sums).read("x", x).run(&ColumnSums { rows, n_units })
//! ```
//!
//! [`Operands::run`] checks that all operands are on one device and that a written tensor shares
//! its storage with no other operand. It locks each storage once, in the order of their addresses
//! (so that two threads cannot deadlock), and calls the code of the device; that of the CPU on
//! threads that run nothing else meanwhile, see [`apart`]. While a step is recorded on CUDA, it
//! logs every operand, see [`Replay`](crate::core::Replay).
//!
//! The locks are taken by recursion ([`take_next`] → candle → [`Take`] → `take_next` …) for one
//! reason: candle hides the method that lends a storage to write (`Tensor::storage_mut`), and what
//! `inplace_op1` lends, it lends for the length of a call.
//!
//! The op checks shapes, types and alignment beforehand, with [`check`](crate::core::check).
pub(crate) mod apart;
mod function;
mod io;

use crate::core::check::address;
use candle::{CpuStorage, DType, Device, InplaceOp1, Layout, Result, Shape, Storage, Tensor};
pub(crate) use function::Function;
pub(crate) use io::{In, Io, Out};
use std::cell::RefCell;

/// The code of an op on each device, for operands that were checked.
pub(crate) trait Kernel: Sync {
    /// Computes on the CPU. Kernels of steps that only a GPU takes have no code here.
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        candle::bail!("{}: this kernel runs on a GPU", io.op)
    }

    /// Whether the code for the CPU gives nothing to other threads where no operand has more than
    /// `most` entries: it then runs in the caller's thread, without the microseconds that the way
    /// to others takes.
    fn is_serial(&self, most: usize) -> bool {
        let _ = most;
        false
    }

    /// Queues the work on the device's stream. Kernels that a GPU has other ones for have no code
    /// here.
    #[cfg(feature = "cuda")]
    fn cuda(&self, _: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        candle::bail!("{}: this kernel runs on the CPU", io.op)
    }
}

/// The operands of a call, in the order in which the kernel takes them.
pub(crate) struct Operands<'a> {
    op: &'static str,
    written: Vec<Operand<'a>>,
    read: Vec<(&'static str, Option<Operand<'a>>)>,
}

/// A tensor by its name in messages, and where its storage lies.
struct Operand<'a> {
    name: &'static str,
    tensor: &'a Tensor,
    address: usize,
}

impl<'a> Operand<'a> {
    fn new(name: &'static str, tensor: &'a Tensor) -> Self {
        Self { name, tensor, address: address(tensor) }
    }
}

/// A call of `op`, still without operands.
pub(crate) fn operands<'a>(op: &'static str) -> Operands<'a> {
    Operands { op, written: Vec::with_capacity(4), read: Vec::with_capacity(8) }
}

impl<'a> Operands<'a> {
    /// A tensor that the kernel writes, and may read.
    pub(crate) fn write(mut self, name: &'static str, tensor: &'a Tensor) -> Self {
        self.written.push(Operand::new(name, tensor));
        self
    }

    /// A tensor that the kernel writes, if there is one: otherwise it has one fewer to write.
    pub(crate) fn maybe_write(self, name: &'static str, tensor: Option<&'a Tensor>) -> Self {
        match tensor {
            Some(tensor) => self.write(name, tensor),
            None => self,
        }
    }

    /// A tensor that the kernel reads.
    pub(crate) fn read(self, name: &'static str, tensor: &'a Tensor) -> Self {
        self.maybe(name, Some(tensor))
    }

    /// A tensor that the kernel reads, if there is one.
    pub(crate) fn maybe(mut self, name: &'static str, tensor: Option<&'a Tensor>) -> Self {
        self.read.push((name, tensor.map(|tensor| Operand::new(name, tensor))));
        self
    }

    /// Runs the kernel on the operands' device.
    ///
    /// # Errors
    /// When operands are on different devices, one that is written shares its storage with another,
    /// or the kernel fails.
    pub(crate) fn run(self, kernel: &impl Kernel) -> Result<()> {
        let op = self.op;
        let plan = self.plan()?;
        match plan.slots.first().map(|slot| slot.tensor.device()) {
            Some(Device::Cpu) => take_next::<CpuStorage, _>(&plan, kernel, vec![]),
            #[cfg(feature = "cuda")]
            Some(Device::Cuda(_)) => {
                crate::core::cuda::log(plan.slots.iter().map(|slot| (slot.tensor, slot.is_written)));
                take_next::<candle::CudaStorage, _>(&plan, kernel, vec![])
            }
            Some(device) => {
                candle::bail!("{op}: there is no code for {:?}; use the CPU or CUDA", device.location())
            }
            None => Ok(()),
        }
    }

    fn plan(&self) -> Result<Plan<'a>> {
        let op = self.op;
        let written = self.written.iter().map(|operand| (operand, true));
        let read = self.read.iter().filter_map(|(_, operand)| Some((operand.as_ref()?, false)));
        let mut slots: Vec<Slot<'a>> = Vec::with_capacity(self.written.len() + self.read.len());
        for (&Operand { name, tensor, address }, is_written) in written.chain(read) {
            if let Some(first) = slots.first() {
                same_device(op, name, tensor, first.tensor.device())?;
            }
            match slots.iter().find(|slot| slot.address == address) {
                Some(slot) if slot.is_written || is_written => candle::bail!(
                    "{op}: {name} must not share the storage of {}, which is written; copy one of them first",
                    slot.name
                ),
                Some(_) => {}
                None => slots.push(Slot { address, name, tensor, is_written }),
            }
        }
        slots.sort_by_key(|slot| slot.address);
        let slot_of = |operand: &Operand<'a>| {
            let slot = slots.iter().position(|slot| slot.address == operand.address);
            // Every operand has a slot: the loop above gave it one.
            (slot.unwrap_or(usize::MAX), operand.tensor.layout())
        };
        Ok(Plan {
            op,
            written: self.written.iter().map(slot_of).collect(),
            read: self.read.iter().map(|(name, operand)| (*name, operand.as_ref().map(slot_of))).collect(),
            slots,
        })
    }
}

/// Refuses an op that makes new tensors while a step of `device` is being recorded.
pub(crate) fn not_recording(op: &'static str, device: &Device) -> Result<()> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => crate::core::cuda::Gpu::of(device)?.not_recording(op),
        _ => {
            let _ = op;
            Ok(())
        }
    }
}

/// A new tensor for the result of `op`, whose kernel writes every entry: unset on a GPU, zeros
/// elsewhere.
///
/// # Errors
/// When memory is short, or a step is being recorded.
pub(crate) fn new_tensor(
    op: &'static str,
    shape: impl Into<Shape>,
    dtype: DType,
    device: &Device,
) -> Result<Tensor> {
    not_recording(op, device)?;
    match device {
        #[cfg(feature = "cuda")]
        // SAFETY: unset memory on a GPU, where only kernels see it; that of `op` writes every entry
        // before another reads one.
        Device::Cuda(_) => unsafe { Tensor::empty(shape, dtype, device) },
        _ => Tensor::zeros(shape, dtype, device),
    }
}

/// Refuses a tensor that is not on `device`, where the result is.
pub(crate) fn same_device(op: &str, name: &str, tensor: &Tensor, device: &Device) -> Result<()> {
    if tensor.device().same_device(device) {
        return Ok(());
    }
    let (got, want) = (tensor.device().location(), device.location());
    let apart = if got == want { ", opened separately with its own stream" } else { "" };
    candle::bail!("{op}: {name} must be on {want:?}, the device of the result, got {got:?}{apart}")
}

/// The storages of a call, each once, and which of them the operands are views of.
struct Plan<'a> {
    op: &'static str,
    /// In the order of their addresses, in which they are locked.
    slots: Vec<Slot<'a>>,
    /// Places in `slots`, in the order of the operands.
    written: Vec<(usize, &'a Layout)>,
    read: Vec<(&'static str, Option<(usize, &'a Layout)>)>,
}

struct Slot<'a> {
    address: usize,
    name: &'static str,
    tensor: &'a Tensor,
    is_written: bool,
}

/// A storage that is locked.
enum Held<'h, S> {
    Written(&'h mut S),
    Read(&'h S),
}

/// Runs the code for the CPU while the caller holds the locks of all operands.
fn on_cpu(kernel: &impl Kernel, io: Io<'_, CpuStorage>) -> Result<()> {
    match kernel.is_serial(io.most_entries()) {
        true => kernel.cpu(io),
        false => apart::apart(|| kernel.cpu(io))?,
    }
}

/// A kind of storage, and the code of a kernel for it.
trait Stored: Sized {
    fn of(storage: &Storage) -> Option<&Self>;
    fn call(kernel: &impl Kernel, plan: &Plan<'_>, io: Io<'_, Self>) -> Result<()>;
}

impl Stored for CpuStorage {
    fn of(storage: &Storage) -> Option<&Self> {
        match storage {
            Storage::Cpu(storage) => Some(storage),
            _ => None,
        }
    }

    fn call(kernel: &impl Kernel, _: &Plan<'_>, io: Io<'_, Self>) -> Result<()> {
        on_cpu(kernel, io)
    }
}

#[cfg(feature = "cuda")]
impl Stored for candle::CudaStorage {
    fn of(storage: &Storage) -> Option<&Self> {
        match storage {
            Storage::Cuda(storage) => Some(storage),
            _ => None,
        }
    }

    fn call(kernel: &impl Kernel, plan: &Plan<'_>, io: Io<'_, Self>) -> Result<()> {
        match plan.slots.first().map(|slot| slot.tensor.device()) {
            Some(Device::Cuda(device)) => kernel.cuda(&crate::core::cuda::Gpu::of(device)?, io),
            _ => candle::bail!("{}: the operands must be on a GPU", plan.op),
        }
    }
}

/// Locks the next storage, and at the end runs the kernel: candle lends a storage to write for the
/// length of a call only.
fn take_next<'c, S: Stored, K: Kernel>(
    plan: &'c Plan<'c>,
    kernel: &'c K,
    held: Vec<Held<'_, S>>,
) -> Result<()>
where
    for<'p, 'h> Take<'p, 'h, S, K>: InplaceOp1,
{
    let Some(slot) = plan.slots.get(held.len()) else { return call(plan, kernel, held) };
    if slot.is_written {
        return slot.tensor.inplace_op1(&Take { plan, kernel, held: RefCell::new(held) });
    }
    let (storage, _) = slot.tensor.storage_and_layout();
    let mut held: Vec<Held<'_, S>> = held;
    match S::of(&storage) {
        Some(storage) => held.push(Held::Read(storage)),
        None => candle::bail!("{}: {} moved to another device", plan.op, slot.name),
    }
    take_next(plan, kernel, held)
}

/// Takes the storage that candle lends and goes on.
struct Take<'c, 'h, S, K> {
    plan: &'c Plan<'c>,
    kernel: &'c K,
    held: RefCell<Vec<Held<'h, S>>>,
}

impl<K: Kernel> InplaceOp1 for Take<'_, '_, CpuStorage, K> {
    fn name(&self) -> &'static str {
        self.plan.op
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> Result<()> {
        let mut held = self.held.take();
        held.push(Held::Written(storage));
        take_next(self.plan, self.kernel, held)
    }
}

#[cfg(feature = "cuda")]
impl<K: Kernel> InplaceOp1 for Take<'_, '_, candle::CudaStorage, K> {
    fn name(&self) -> &'static str {
        self.plan.op
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        candle::bail!("{}: the operands must be on a GPU", self.plan.op)
    }

    fn cuda_fwd(&self, storage: &mut candle::CudaStorage, _: &Layout) -> Result<()> {
        let mut held = self.held.take();
        held.push(Held::Written(storage));
        take_next(self.plan, self.kernel, held)
    }
}

/// Hands each operand its storage.
fn call<S: Stored>(plan: &Plan<'_>, kernel: &impl Kernel, held: Vec<Held<'_, S>>) -> Result<()> {
    let op = plan.op;
    let (mut writable, mut readable) = (Vec::with_capacity(held.len()), Vec::with_capacity(held.len()));
    for held in held {
        match held {
            Held::Written(storage) => {
                writable.push(Some(storage));
                readable.push(None);
            }
            Held::Read(storage) => {
                writable.push(None);
                readable.push(Some(storage));
            }
        }
    }
    let mut io = Io { op, written: Vec::with_capacity(plan.written.len()), read: vec![] };
    for &(slot, layout) in &plan.written {
        let Some(storage) = writable.get_mut(slot).and_then(Option::take) else {
            candle::bail!("{op}: an operand that is written is named twice")
        };
        io.written.push(Out { op, storage, layout });
    }
    io.read.extend(plan.read.iter().map(|&(name, slot)| {
        let found = slot.and_then(|(slot, layout)| Some((*readable.get(slot)?.as_ref()?, layout)));
        In { op, name, found }
    }));
    S::call(kernel, plan, io)
}
