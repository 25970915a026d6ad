//! Ranks that compute together: threads or processes on the CPU, or GPUs by NCCL.
//!
//! A [`Group`] is one rank's seat among `world` of them. All ranks call the same collectives in the
//! same order, with tensors of the same type and size; each call returns when the rank's own part is
//! done (on a GPU: queued on the stream of its device, so that kernels before and after it follow in
//! order, and a recorded step may hold it).
//!
//! | collective | result |
//! |---|---|
//! | [`all_reduce_`](Group::all_reduce_), or [`beside`](Group::beside) other work | `x ← Σ_r x_r` on every rank |
//! | [`reduce_scatter_`](Group::reduce_scatter_) | `part ← part r of Σ_r x_r` on rank r |
//! | [`all_gather_`](Group::all_gather_) | `all ← x_0, x_1, …` on every rank |
//! | [`broadcast_`](Group::broadcast_) | `x ← x` of the root on every rank |
//!
//! The same number of ranks gives the same bits. On the CPU sums go through the ranks in order, in
//! f64 for floats; NCCL sums in the type of the tensor, in the order of its rings.
//!
//! [`Group::single`] is one rank alone: its collectives copy at most, and need no library.
//!
//! Processes find each other by the environment of their launcher, [`Place::of_environment`], meet with
//! a time limit, [`Processes::meet`], and watch each other from then on.
//!
//! Cost of an all-reduce of `b` bytes by NCCL: `2 (world − 1) / world · b` over the slowest link, and
//! some 20 µs. Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
//! workstations", J. Parallel Distrib. Comput. 69, 2009.
mod call;
mod environment;
mod frames;
mod meeting;
#[cfg(feature = "cuda")]
mod nccl;
mod processes;
mod shared;
mod threads;

pub use environment::Place;
pub use processes::{OnLoss, Processes, SILENCE, Wish};

use crate::core::check::expect_layout;
use crate::core::op::{Io, Kernel, operands};
use call::{Call, Summed};
use candle::{CpuStorage, DType, Device, Result, Tensor};
use std::ops::Range;
use std::sync::Arc;
use threads::Seat;

/// Types that ranks exchange.
const TYPES: [DType; 6] = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::U32];

/// One rank's seat among those that compute together; see the [module](self).
#[derive(Debug, Clone)]
pub struct Group {
    rank: usize,
    world: usize,
    means: Means,
}

/// How ranks exchange numbers.
#[derive(Debug, Clone)]
enum Means {
    Alone,
    Threads(Arc<Seat>),
    Processes(Arc<Processes>),
    #[cfg(feature = "cuda")]
    Nccl(Arc<nccl::Communicator>),
}

impl Default for Group {
    fn default() -> Self {
        Self::single()
    }
}

impl Group {
    /// One rank alone.
    pub fn single() -> Self {
        Self { rank: 0, world: 1, means: Means::Alone }
    }

    /// Seats for `world` threads of this process, whose tensors are on the CPU. A thread that drops
    /// its seat ends the waits of the others with an error that names its rank.
    pub fn threads(world: usize) -> Vec<Self> {
        let seats = threads::seats(world).into_iter().map(Arc::new);
        seats.enumerate().map(|(rank, seat)| Self { rank, world, means: Means::Threads(seat) }).collect()
    }

    /// What each rank makes of its seat, on a thread of its own, in the order of ranks. A panic of a
    /// rank goes on in the caller when the others have ended.
    pub fn on_threads<T: Send>(seats: Vec<Self>, of_rank: impl Fn(&Self) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let of_rank = &of_rank;
            let ranks = seats.into_iter().map(|seat| scope.spawn(move || of_rank(&seat)));
            let ranks: Vec<_> = ranks.collect();
            let joined = ranks.into_iter().map(|rank| rank.join());
            joined.map(|made| made.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        })
    }

    /// Seats for threads of this process, one for each of these GPUs, by NCCL.
    ///
    /// # Errors
    /// When NCCL is missing or older than 2.18, or a device is no GPU or there twice; without the
    /// feature `cuda` always.
    pub fn on_gpus(devices: &[Device]) -> Result<Vec<Self>> {
        if let [Device::Cuda(_)] = devices {
            return Ok(vec![Self::single()]);
        }
        #[cfg(feature = "cuda")]
        {
            let seats = nccl::of_one_process(devices)?;
            let world = seats.len();
            let group = |(rank, seat)| Self { rank, world, means: Means::Nccl(Arc::new(seat)) };
            Ok(seats.into_iter().enumerate().map(group).collect())
        }
        #[cfg(not(feature = "cuda"))]
        candle::bail!(
            "Group::on_gpus: {} devices must be GPUs; build with the feature cuda, or use Group::threads",
            devices.len()
        )
    }

    /// The seat of a process among those that it met, each with a device of its own: by NCCL where
    /// these are GPUs, and over TCP on the CPU, which is for trying things and no faster than one process.
    ///
    /// # Errors
    /// When NCCL is missing or older than 2.18, two processes have one GPU, or some have a GPU and others
    /// none.
    pub fn of_processes(processes: &Arc<Processes>, device: &Device) -> Result<Self> {
        let (rank, world) = (processes.rank(), processes.world());
        if world == 1 {
            return Ok(Self::single());
        }
        let means = match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => Means::Nccl(Arc::new(nccl::of_processes(processes, device)?)),
            _ => {
                processes.agree("the device cpu")?;
                Means::Processes(processes.clone())
            }
        };
        Ok(Self { rank, world, means })
    }

    /// Which of the ranks this is, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are, at least 1.
    pub fn world(&self) -> usize {
        self.world
    }

    /// Whether this rank is alone.
    pub fn is_single(&self) -> bool {
        self.world == 1
    }

    /// Sums, gathers and broadcasts that this rank has made; none are counted where ranks are no
    /// threads on the CPU. What algorithms exchange is known from these.
    pub fn exchanges(&self) -> u64 {
        match &self.means {
            Means::Threads(seat) => seat.made(),
            _ => 0,
        }
    }

    /// This rank's part of `n` items in order; parts differ by one item at most.
    pub fn part(&self, n: usize) -> Range<usize> {
        self.part_of(self.rank, n)
    }

    /// The part of another rank.
    pub fn part_of(&self, rank: usize, n: usize) -> Range<usize> {
        let start = |rank: usize| n / self.world * rank + (n % self.world).min(rank);
        start(rank)..start(rank + 1)
    }

    /// This rank's rows of a minibatch of `n`; parts begin at multiples of 4 and differ by 4 rows at
    /// most.
    ///
    /// Four random numbers come from one block of a [`Philox`](crate::Philox) sequence. So whatever the
    /// width of rows, a rank's begin with a block of their own, and each element gets the number that
    /// it would get with one rank.
    pub fn rows(&self, n: usize) -> Range<usize> {
        self.rows_of(self.rank, n)
    }

    /// The rows of another rank.
    pub fn rows_of(&self, rank: usize, n: usize) -> Range<usize> {
        let blocks = self.part_of(rank, n.div_ceil(4));
        (4 * blocks.start).min(n)..(4 * blocks.end).min(n)
    }

    /// `x ← Σ_r x_r` on every rank.
    ///
    /// # Errors
    /// When `x` is not contiguous or of a type that ranks do not exchange (f32, f64, f16, bf16, i64
    /// and u32 are), when other ranks call something else, or one is gone.
    pub fn all_reduce_(&self, x: &Tensor) -> Result<()> {
        const OP: &str = "all_reduce_";
        expect_layout(OP, "x", x, &TYPES)?;
        self.run(OP, What::AllReduce { beside: false }, x, None)
    }

    /// Sums over ranks that go on beside what the rank computes meanwhile: on a GPU on a stream of
    /// their own, on the CPU one after the other as ever.
    ///
    /// ```
    /// # use candle::{Device::Cpu, Result, Tensor};
    /// # use chandlery_ops::Group;
    /// # fn main() -> Result<()> {
    /// let sums = Group::on_threads(Group::threads(2), |group| {
    ///     let x = Tensor::new(&[1f32, 2.], &Cpu)?;
    ///     let mut beside = group.beside();
    ///     beside.all_reduce_(&x)?;
    ///     // What neither reads nor writes x goes here.
    ///     beside.join()?;
    ///     x.to_vec1::<f32>()
    /// });
    /// assert_eq!(sums.into_iter().collect::<Result<Vec<_>>>()?, [[2., 4.], [2., 4.]]);
    /// # Ok(()) }
    /// ```
    pub fn beside(&self) -> Beside<'_> {
        Beside { group: self, under_way: Vec::new() }
    }

    /// `part ← part r of Σ_r x_r` on rank r, where `x` has `world` parts of equal size one behind the
    /// other.
    ///
    /// # Errors
    /// As [`all_reduce_`](Self::all_reduce_), and when sizes or types do not fit.
    pub fn reduce_scatter_(&self, part: &Tensor, x: &Tensor) -> Result<()> {
        const OP: &str = "reduce_scatter_";
        self.expect_parts(OP, ("part", part), ("x", x))?;
        self.run(OP, What::ReduceScatter, part, Some(x))
    }

    /// `all ← x_0, x_1, …` on every rank, one behind the other.
    ///
    /// # Errors
    /// As [`reduce_scatter_`](Self::reduce_scatter_).
    pub fn all_gather_(&self, all: &Tensor, x: &Tensor) -> Result<()> {
        const OP: &str = "all_gather_";
        self.expect_parts(OP, ("x", x), ("all", all))?;
        self.run(OP, What::AllGather, all, Some(x))
    }

    /// `x ← x` of rank `root` on every rank.
    ///
    /// # Errors
    /// As [`all_reduce_`](Self::all_reduce_), and when `root` is no rank.
    pub fn broadcast_(&self, x: &Tensor, root: usize) -> Result<()> {
        const OP: &str = "broadcast_";
        expect_layout(OP, "x", x, &TYPES)?;
        if root >= self.world {
            candle::bail!("{OP}: root must be below {}, the number of ranks, got {root}", self.world)
        }
        self.run(OP, What::Broadcast { root }, x, None)
    }

    fn expect_parts(
        &self,
        op: &str,
        (of_part, part): (&str, &Tensor),
        (of_all, all): (&str, &Tensor),
    ) -> Result<()> {
        expect_layout(op, of_part, part, &TYPES)?;
        expect_layout(op, of_all, all, &[part.dtype()])?;
        if all.elem_count() != self.world * part.elem_count() {
            candle::bail!(
                "{op}: {of_all} must have {} entries, {} for each of {} ranks, got {}",
                self.world * part.elem_count(),
                part.elem_count(),
                self.world,
                all.elem_count()
            )
        }
        Ok(())
    }

    fn run(&self, op: &'static str, what: What, written: &Tensor, read: Option<&Tensor>) -> Result<()> {
        let collective = Collective { group: self, what, dtype: written.dtype() };
        match (read, &self.means) {
            (None, Means::Alone) => Ok(()),
            (None, _) => operands(op).write("x", written).run(&collective),
            (Some(read), _) => operands(op).write("the result", written).read("x", read).run(&collective),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    AllReduce { beside: bool },
    ReduceScatter,
    AllGather,
    Broadcast { root: usize },
}

/// Sums that are under way; see [`Group::beside`].
#[must_use = "what is summed may be used only after `join`"]
#[derive(Debug)]
pub struct Beside<'a> {
    group: &'a Group,
    /// They stay in memory until the sums are joined.
    under_way: Vec<Tensor>,
}

impl Beside<'_> {
    /// `x ← Σ_r x_r` on every rank, of what is queued for `x` so far; nothing may read or write `x`
    /// until [`join`](Self::join).
    ///
    /// # Errors
    /// As [`Group::all_reduce_`].
    pub fn all_reduce_(&mut self, x: &Tensor) -> Result<()> {
        const OP: &str = "Beside::all_reduce_";
        expect_layout(OP, "x", x, &TYPES)?;
        self.under_way.push(x.clone());
        self.group.run(OP, What::AllReduce { beside: true }, x, None)
    }

    /// What is queued from here on follows the sums.
    ///
    /// # Errors
    /// When the device fails.
    pub fn join(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if std::mem::take(&mut self.under_way).is_empty() {
            return Ok(());
        }
        match &self.group.means {
            #[cfg(feature = "cuda")]
            Means::Nccl(seat) => seat.join(),
            _ => Ok(()),
        }
    }
}

impl Drop for Beside<'_> {
    /// Memory that is given back must not be written any more.
    fn drop(&mut self) {
        let _ = self.end();
    }
}

struct Collective<'a> {
    group: &'a Group,
    what: What,
    dtype: DType,
}

impl Collective<'_> {
    fn on_cpu<T: Summed>(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let op = io.op;
        let (of_all, root) = (|len: usize| Call { op, dtype: T::DTYPE, len, root: None }, self.what.root());
        let meet = |call: Call, mine: &[T]| match &self.group.means {
            Means::Threads(seat) => seat.meet(call, mine.to_vec()),
            Means::Processes(processes) => call.among(processes, mine),
            Means::Alone => Ok(vec![Arc::new(mine.to_vec())]),
            #[cfg(feature = "cuda")]
            Means::Nccl(_) => {
                candle::bail!("{op}: a group of GPUs must have tensors on them, got some on the CPU")
            }
        };
        let sum_at = |all: &[Arc<Vec<T>>], i: usize| T::sum(all.iter().filter_map(|of| of.get(i).copied()));
        match self.what {
            What::AllReduce { .. } => {
                let ([x], []) = io.parts()?;
                let x = x.elements::<T>()?;
                let all = meet(of_all(x.len()), x)?;
                x.iter_mut().enumerate().for_each(|(i, x)| *x = sum_at(&all, i));
            }
            What::ReduceScatter => {
                let ([part], [x]) = io.parts()?;
                let (part, x) = (part.elements::<T>()?, x.elements::<T>()?);
                let (all, first) = (meet(of_all(x.len()), x)?, self.group.rank * part.len());
                part.iter_mut().enumerate().for_each(|(i, part)| *part = sum_at(&all, first + i));
            }
            What::AllGather => {
                let ([all], [x]) = io.parts()?;
                let (to, x) = (all.elements::<T>()?, x.elements::<T>()?);
                let all = meet(of_all(x.len()), x)?;
                let parts = to.chunks_exact_mut(x.len().max(1)).zip(&all);
                parts.for_each(|(to, of)| to.copy_from_slice(of));
            }
            What::Broadcast { root: from } => {
                let ([x], []) = io.parts()?;
                let x = x.elements::<T>()?;
                let mine = if self.group.rank == from { &x[..] } else { &[] };
                let all = meet(Call { root, ..of_all(x.len()) }, mine)?;
                if let Some(of) = all.get(from) {
                    x.copy_from_slice(of);
                }
            }
        }
        Ok(())
    }
}

impl What {
    fn root(self) -> Option<usize> {
        match self {
            Self::Broadcast { root } => Some(root),
            _ => None,
        }
    }
}

impl Kernel for Collective<'_> {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        for_type!(
            self.dtype,
            [F32: f32, F16: half::f16, BF16: half::bf16, I64: i64, U32: u32; f64],
            |T| self.on_cpu::<T>(io)
        )
    }

    /// It waits for other threads, so it must not keep one from work that these wait for.
    fn is_serial(&self, _: usize) -> bool {
        true
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        for_type!(
            self.dtype,
            [F32: f32, F16: half::f16, BF16: half::bf16, I64: i64, U32: u32; f64],
            |T| nccl::run::<T>(self.group, self.what, gpu, io)
        )
    }
}

#[cfg(test)]
mod process_tests;
#[cfg(test)]
mod tests;
