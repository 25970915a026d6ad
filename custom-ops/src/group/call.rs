//! What ranks call, and the numbers that they bring to it.
use super::processes::Processes;
use candle::{DType, Result, WithDType};
use std::sync::Arc;

/// What a rank calls; all ranks must call the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Call {
    pub op: &'static str,
    pub dtype: DType,
    /// Entries that a rank brings, or gets.
    pub len: usize,
    pub root: Option<usize>,
}

impl Call {
    fn words(&self) -> String {
        let root = self.root.map(|root| format!(" from rank {root}")).unwrap_or_default();
        format!("{}{root} of {} of {}", self.op, self.dtype.as_str(), self.len)
    }

    /// Refuses another call of another rank.
    pub fn expect_same(&self, own: usize, other: &Self, rank: usize) -> Result<()> {
        if self == other { Ok(()) } else { self.differs(own, &other.words(), rank) }
    }

    fn differs(&self, own: usize, other: &str, rank: usize) -> Result<()> {
        candle::bail!(
            "{}: all ranks must make the same call, got {} on rank {own} and {other} on rank {rank}",
            self.op,
            self.words()
        )
    }

    /// The numbers of all processes, in the order of ranks; each brings some, or none.
    pub fn among<T: Summed>(&self, processes: &Processes, mine: &[T]) -> Result<Vec<Arc<Vec<T>>>> {
        let mut bytes = format!("{}\n", self.words()).into_bytes();
        mine.iter().for_each(|number| number.put(&mut bytes));
        let all = processes.exchange(bytes)?;
        let read = |(rank, bytes): (usize, Vec<u8>)| {
            let end = bytes.iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len());
            let (words, numbers) = bytes.split_at_checked(end).unwrap_or_default();
            if words != self.words().as_bytes() {
                self.differs(processes.rank(), &String::from_utf8_lossy(words), rank)?;
            }
            Ok(Arc::new(T::all(numbers.get(1..).unwrap_or_default())))
        };
        all.into_iter().enumerate().map(read).collect()
    }
}

/// A number that ranks add and send.
pub(super) trait Summed: WithDType {
    fn sum(numbers: impl Iterator<Item = Self>) -> Self;
    fn put(self, bytes: &mut Vec<u8>);
    fn all(bytes: &[u8]) -> Vec<Self>;
}

macro_rules! summed {
    ($($type:ty: |$numbers:ident| $sum:expr;)+) => {$(
        impl Summed for $type {
            fn sum($numbers: impl Iterator<Item = Self>) -> Self {
                $sum
            }

            fn put(self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_le_bytes());
            }

            fn all(bytes: &[u8]) -> Vec<Self> {
                bytes.as_chunks().0.iter().map(|bytes| Self::from_le_bytes(*bytes)).collect()
            }
        }
    )+};
}
summed! {
    f64: |numbers| numbers.sum();
    f32: |numbers| numbers.map(f64::from).sum::<f64>() as f32;
    half::f16: |numbers| Self::from_f64(numbers.map(f64::from).sum());
    half::bf16: |numbers| Self::from_f64(numbers.map(f64::from).sum());
    i64: |numbers| numbers.fold(0, i64::wrapping_add);
    u32: |numbers| numbers.fold(0, u32::wrapping_add);
}
