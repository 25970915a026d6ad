//! The signals that use each atom: sparse codes, sorted by atom.
use super::check_codes;
use crate::SparseCodes;
use crate::host::{Operand, contiguous};
use candle::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

const OP: &str = "AtomUses::of";
/// Entries that one task of the CPU twin sorts.
const CHUNK: usize = 64 * 1024;

/// For each atom the places in the codes that name it, in ascending order.
///
/// Place `i · s + k` is entry `k` of signal `i`. Atom `j` has `entries[offsets[j]..offsets[j + 1]]`. Made by a stable counting sort on
/// the codes' device; the same codes give the same lists on every device.
#[derive(Debug, Clone)]
pub struct AtomUses {
    packed: Tensor,
    pub(super) n_atoms: usize,
    pub(super) n_samples: usize,
    pub(super) width: usize,
}

impl AtomUses {
    /// Sorts the entries of `codes` by atom.
    ///
    /// Cost: `O(ms + n)`, two passes over the indices.
    ///
    /// # Errors
    /// When the tensors of `codes` do not fit each other, there are 2³² entries or more, or, on the CPU, an index is not below
    /// `n_atoms` (a GPU leaves such entries out).
    pub fn of(codes: &SparseCodes) -> Result<Self> {
        let (n_samples, width) = check_codes(OP, codes, &codes.values)?;
        let n_atoms = codes.n_atoms;
        if n_atoms == 0 || n_atoms >= u32::MAX as usize {
            candle::bail!("{OP}: n_atoms must be in 1..2^32 - 1, got {n_atoms}")
        }
        let count = codes.count.contiguous()?;
        let sort = Sort { count: &count, n_atoms, n_samples, width };
        let packed = codes.indices.contiguous()?.apply_op1_no_bwd(&sort)?;
        Ok(Self { packed, n_atoms, n_samples, width })
    }

    /// Where the list of each atom begins and the last one ends, u32 `[n_atoms + 1]`.
    ///
    /// # Errors
    /// When candle cannot make the view.
    pub fn offsets(&self) -> Result<Tensor> {
        self.packed.narrow(0, 0, self.n_atoms + 1)
    }

    /// The lists, one after the other, u32 `[n_samples · width]`; what lies beyond the last is 0.
    ///
    /// # Errors
    /// When candle cannot make the view.
    pub fn entries(&self) -> Result<Tensor> {
        self.packed.narrow(0, self.n_atoms + 1, self.n_samples * self.width)
    }

    /// How many signals use each atom, read back from the device.
    ///
    /// # Errors
    /// When the device fails.
    pub fn counts(&self) -> Result<Vec<u32>> {
        let offsets = self.offsets()?.to_vec1::<u32>()?;
        Ok(offsets.windows(2).map(|o| o[1] - o[0]).collect())
    }

    /// That the lists are those of codes of this shape.
    pub(super) fn check(&self, op: &str, codes: &SparseCodes) -> Result<()> {
        if codes.indices.dims() != [self.n_samples, self.width] || codes.n_atoms != self.n_atoms {
            candle::bail!(
                "{op}: uses must be those of the codes, of shape [{}, {}] over {} atoms, got codes {:?} over {}",
                self.n_samples,
                self.width,
                self.n_atoms,
                codes.indices.dims(),
                codes.n_atoms
            )
        }
        crate::draw::same_device(op, "uses", &self.packed, codes.values.device())
    }
}

struct Sort<'a> {
    count: &'a Tensor,
    n_atoms: usize,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    n_samples: usize,
    width: usize,
}

impl CustomOp1 for Sort<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(&self, indices: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let count = Operand::new(self.count);
        let packed = self.sort(contiguous::<u32>(indices, layout, OP)?, count.elements::<u32>(OP)?)?;
        let shape = Shape::from(packed.len());
        Ok((CpuStorage::U32(packed), shape))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        indices: &candle::CudaStorage,
        layout: &Layout,
    ) -> Result<(candle::CudaStorage, Shape)> {
        self.cuda(indices, layout)
    }
}

/// The entries of some signals in a row, sorted by atom.
struct Part {
    /// `[n_atoms + 1]`
    offsets: Vec<u32>,
    entries: Vec<u32>,
}

impl Sort<'_> {
    fn sort(&self, indices: &[u32], count: &[u32]) -> Result<Vec<u32>> {
        let (n, s) = (self.n_atoms, self.width);
        let signals = (CHUNK / s.max(1)).max(1);
        let parts: Vec<Part> = count
            .par_chunks(signals)
            .enumerate()
            .map(|(c, count)| self.part(indices, count, c * signals))
            .collect::<Result<_>>()?;
        let mut packed = vec![0; n + 1 + indices.len()];
        let (offsets, entries) = packed.split_at_mut(n + 1);
        for part in &parts {
            offsets.iter_mut().zip(&part.offsets).for_each(|(all, part)| *all += part);
        }
        // Each atom's list is that of the first part, then that of the second, and so on.
        let mut lists = Vec::with_capacity(n);
        let mut rest = entries;
        for o in offsets.windows(2) {
            let (list, after) = rest.split_at_mut((o[1] - o[0]) as usize);
            lists.push(list);
            rest = after;
        }
        let join = |(j, list): (usize, &mut [u32])| {
            let mut at = 0;
            for part in &parts {
                let from = &part.entries[part.offsets[j] as usize..part.offsets[j + 1] as usize];
                list[at..at + from.len()].copy_from_slice(from);
                at += from.len();
            }
        };
        match parts.len() {
            0 | 1 => lists.into_iter().enumerate().for_each(join),
            _ => lists.into_par_iter().enumerate().for_each(join),
        }
        Ok(packed)
    }

    /// Sorts the entries of the signals `first..first + count.len()`.
    fn part(&self, indices: &[u32], count: &[u32], first: usize) -> Result<Part> {
        let (n, s) = (self.n_atoms, self.width);
        let code = |i: usize, count: u32| {
            let row = (first + i) * s;
            (row as u32, &indices[row..row + (count as usize).min(s)])
        };
        let mut offsets = vec![0u32; n + 2];
        for (i, &count) in count.iter().enumerate() {
            for &atom in code(i, count).1 {
                if atom as usize >= n {
                    candle::bail!(
                        "{OP}: indices must be below n_atoms {n}, got {atom} for signal {}",
                        first + i
                    )
                }
                offsets[atom as usize + 2] += 1;
            }
        }
        for j in 2..n + 2 {
            offsets[j] += offsets[j - 1];
        }
        // offsets[j + 1] is where the next entry of atom j goes, and in the end where atom j + 1 begins.
        let mut entries = vec![0; offsets[n + 1] as usize];
        for (i, &count) in count.iter().enumerate() {
            let (row, code) = code(i, count);
            for (k, &atom) in (0u32..).zip(code) {
                let next = &mut offsets[atom as usize + 1];
                entries[*next as usize] = row + k;
                *next += 1;
            }
        }
        offsets.truncate(n + 1);
        Ok(Part { offsets, entries })
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::{OP, Sort};
    use crate::cuda::{Operand, count, function, view};
    use candle::backend::BackendStorage;
    use candle::cuda::cudarc::driver::{LaunchConfig, PushKernelArg};
    use candle::cuda::{CudaStorage, WrapErr};
    use candle::{Layout, Result, Shape};

    /// Of kernels/atom_uses.cu: threads of a block, four warps.
    const THREADS: u32 = 128;
    const WARP: usize = 32;
    /// The most tiles, so that the table stays small beside the codes.
    const MAX_TILES: usize = 2048;
    /// The fewest entries of a tile.
    const MIN_TILE: usize = 256;

    impl Sort<'_> {
        pub(super) fn cuda(&self, indices: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
            let device = indices.device();
            let (n, s) = (self.n_atoms, self.width);
            let entries = self.n_samples * s;
            let indices = view::<u32>(indices, layout, OP)?;
            let counts = Operand::new(self.count);
            let counts = counts.view::<u32>(OP)?;
            let tile = entries.div_ceil(MAX_TILES).next_multiple_of(WARP).max(MIN_TILE);
            let tiles = entries.div_ceil(tile).max(1);
            let mut packed = device.alloc_zeros::<u32>(n + 1 + entries)?;
            let mut table = device.alloc_zeros::<u32>(n * tiles)?;
            let (n_32, s_32) = (count(OP, n)?, count(OP, s)?);
            let (entries_32, tile_32, tiles_32) = (count(OP, entries)?, count(OP, tile)?, count(OP, tiles)?);
            let warps = |n: usize| -> Result<LaunchConfig> {
                let blocks = count(OP, n.div_ceil(THREADS as usize / WARP))?;
                Ok(LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 })
            };

            let tally = function(device, "atom_uses", "tally")?;
            let mut launch = tally.builder();
            launch.arg(&mut table).arg(&indices).arg(&counts);
            launch.arg(&entries_32).arg(&s_32).arg(&n_32).arg(&tile_32).arg(&tiles_32);
            // SAFETY: (unsigned*, 2 × const unsigned*, 5 × unsigned): the table holds n · tiles counts, indices `entries` and
            // counts `n_samples` numbers by the checks of `AtomUses::of`; a warp for each tile.
            unsafe { launch.launch(warps(tiles)?) }.w()?;

            let scan = function(device, "atom_uses", "scan_tiles")?;
            let mut launch = scan.builder();
            launch.arg(&mut packed).arg(&mut table).arg(&n_32).arg(&tiles_32);
            // SAFETY: (unsigned*, unsigned*, 2 × unsigned): `packed` begins with n + 1 offsets; a warp for each atom.
            unsafe { launch.launch(warps(n)?) }.w()?;

            let scan = function(device, "atom_uses", "scan_atoms")?;
            let mut launch = scan.builder();
            launch.arg(&mut packed).arg(&n_32);
            let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1024, 1, 1), shared_mem_bytes: 0 };
            // SAFETY: (unsigned*, unsigned): n + 1 offsets; one block of the kernel's 1024 threads.
            unsafe { launch.launch(one) }.w()?;

            let scatter = function(device, "atom_uses", "scatter")?;
            let mut launch = scatter.builder();
            launch.arg(&mut packed).arg(&mut table).arg(&indices).arg(&counts);
            launch.arg(&entries_32).arg(&s_32).arg(&n_32).arg(&tile_32).arg(&tiles_32);
            // SAFETY: as for `tally`; after the offsets `packed` holds `entries` places, and the offsets of that many.
            unsafe { launch.launch(warps(tiles)?) }.w()?;
            let shape = Shape::from(n + 1 + entries);
            Ok((CudaStorage::wrap_cuda_slice(packed, device.clone()), shape))
        }
    }
}
