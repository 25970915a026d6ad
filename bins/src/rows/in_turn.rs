//! Blocks of rows that ranks take in turn, and what they make of them, in order.
//!
//! Rank r of n takes the blocks r, r + n, r + 2n, … Each is a block that one process would take, so
//! that what becomes of it has the same bits, whatever a row's result takes from the rows beside
//! it.
use crate::ranks::Ranks;
use anyhow::{Context, Result};
use candle::{DType, Device, Tensor};
use chandlery::Group;
use chandlery_datasets::{Fingerprint, Split};
use serde::{Deserialize, Serialize};

/// The rows of a split that this rank takes, whole blocks of `block` rows in the order of the
/// source: all where it is alone, none where there are too few blocks for it.
///
/// # Errors
/// When the split cannot be cut.
pub fn own(ranks: &Ranks, split: &Split, block: usize) -> Result<Option<Split>> {
    let (rank, world) = ranks.place();
    if world == 1 {
        return Ok(Some(split.clone()));
    }
    let n = split.n_samples();
    let blocks = (rank * block..n).step_by(world * block).map(|first| first..(first + block).min(n));
    let rows: Vec<u32> = blocks.flatten().map(|row| row as u32).collect();
    Ok(if rows.is_empty() { None } else { Some(split.select(&rows)?) })
}

/// Refuses ranks that were asked for something else, or have other rows.
///
/// # Errors
/// When one differs, which is named, or is gone.
pub fn agree<'a>(ranks: &Ranks, splits: impl IntoIterator<Item = &'a Split>) -> Result<()> {
    ranks.agree(|| {
        // The program itself may lie elsewhere on another host.
        let args: Vec<_> =
            std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
        let content = serde_json::to_string(&Fingerprint::of(splits, None)?)?;
        let (version, args) = (env!("CARGO_PKG_VERSION"), args.join(" "));
        Ok(format!("version: {version}\ncommand: {args}\ncontent of the data: {content}\n"))
    })
}

/// A tensor that a rank has for the others: its type by name, and its shape.
#[derive(Debug, Serialize, Deserialize)]
struct Has(String, Vec<usize>);

/// What ranks make of blocks in turn, in the order of the blocks: `own` gives what becomes of this
/// rank's next block, tensors of the types that ranks exchange, and `None` at their end.
///
/// A round is a block of each rank; all make theirs at once. Memory of a rank: what becomes of two
/// blocks.
pub struct InTurn<'a, F> {
    ranks: &'a Ranks,
    group: Group,
    device: &'a Device,
    own: F,
    /// Of this round, what this rank has, and of what types and shapes that of each rank is.
    mine: Option<Vec<Tensor>>,
    all: Vec<Option<Vec<Has>>>,
    /// Whose turn it is.
    turn: usize,
    /// This rank wants no more.
    enough: bool,
    ended: bool,
}

impl<'a, F: FnMut() -> Result<Option<Vec<Tensor>>>> InTurn<'a, F> {
    /// On the device of the tensors that `own` gives.
    ///
    /// # Errors
    /// When NCCL is missing, or a rank is gone.
    pub fn new(ranks: &'a Ranks, device: &'a Device, own: F) -> Result<Self> {
        let group = ranks.group(device)?;
        let turn = group.world();
        Ok(Self { ranks, group, device, own, mine: None, all: vec![], turn, enough: false, ended: false })
    }

    /// The ranks.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// What becomes of the next block, on every rank. All must call it alike, but for
    /// [`finish`](Self::finish).
    ///
    /// # Errors
    /// That of `own`, and when a rank is gone.
    pub fn next(&mut self) -> Result<Option<Vec<Tensor>>> {
        if self.ended {
            return Ok(None);
        }
        if self.turn == self.group.world() {
            self.begin_round()?;
        }
        let Some(has) = self.all.get(self.turn).and_then(Option::as_ref) else {
            // Blocks are taken in turn: no rank has one behind it.
            self.ended = true;
            return Ok(None);
        };
        let made = match self.mine.take_if(|_| self.turn == self.group.rank()) {
            Some(mine) => mine,
            None => {
                let empty = |Has(dtype, shape): &Has| -> Result<Tensor> {
                    Ok(Tensor::zeros(shape.as_slice(), dtype.parse::<DType>()?, self.device)?)
                };
                has.iter().map(empty).collect::<Result<_>>()?
            }
        };
        if !self.group.is_single() {
            // Of nothing there is nothing to send.
            let mut full = made.iter().filter(|t| t.elem_count() > 0);
            full.try_for_each(|t| self.group.broadcast_(t, self.turn))?;
        }
        self.turn += 1;
        Ok(Some(made))
    }

    fn begin_round(&mut self) -> Result<()> {
        let made = if self.enough { None } else { (self.own)()? };
        let whole = |made: Vec<Tensor>| made.iter().map(Tensor::contiguous).collect::<candle::Result<_>>();
        self.mine = made.map(whole).transpose()?;
        let has = |t: &Tensor| Has(t.dtype().as_str().to_owned(), t.dims().to_vec());
        let has: Option<Vec<Has>> = self.mine.as_ref().map(|made| made.iter().map(has).collect());
        self.turn = 0;
        if self.group.is_single() {
            self.all = vec![has];
            return Ok(());
        }
        let all = self.ranks.exchange(serde_json::to_vec(&has)?)?;
        let read = |of: &Vec<u8>| serde_json::from_slice(of).context("ranks must be of one version");
        self.all = all.iter().map(read).collect::<Result<_>>()?;
        Ok(())
    }

    /// Takes part until the end: on rank 0, which may want no more before it, that of the round.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn finish(mut self) -> Result<()> {
        self.enough = self.ranks.is_first();
        while self.next()?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_process_makes_all_blocks_until_it_has_enough() {
        let ranks = Ranks::default();
        let split = Split::from_u8((0..10).collect(), 2, None).unwrap();
        assert_eq!(own(&ranks, &split, 2).unwrap().unwrap().n_samples(), 5);
        for wanted in 0..4u32 {
            let mut n = 0;
            let mut made = InTurn::new(&ranks, &Device::Cpu, || {
                n += 1;
                Ok(if n > 3 { None } else { Some(vec![Tensor::new(n, &Device::Cpu)?]) })
            })
            .unwrap();
            for i in 0..wanted {
                assert_eq!(made.next().unwrap().unwrap()[0].to_scalar::<u32>().unwrap(), i + 1);
            }
            made.finish().unwrap();
            assert_eq!(n, wanted);
        }
    }
}
