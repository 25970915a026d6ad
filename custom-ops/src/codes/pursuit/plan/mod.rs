//! The choice of the kernels for a job on a GPU, by its sizes and the GPU's resources.
mod split;
mod steps;

pub(super) use steps::Steps;

use super::job::Rule;
use crate::core::limits::Limits;
use candle::Result;
use split::Split;

/// Atoms, steps, and warps that share a signal, that `pursuit_registers.cuh` was compiled for,
/// cheapest first.
const IN_REGISTERS_F32: [(usize, usize, usize); 14] = [
    (128, 8, 1),
    (128, 16, 1),
    (128, 32, 1),
    (256, 8, 1),
    (256, 16, 1),
    (256, 24, 2),
    (256, 32, 2),
    (512, 8, 1),
    (512, 12, 1),
    (512, 16, 2),
    (512, 20, 4),
    (1024, 8, 2),
    (1024, 12, 4),
    (1024, 16, 4),
];
const IN_REGISTERS_F64: [(usize, usize, usize); 3] = [(128, 8, 1), (128, 16, 1), (256, 8, 1)];

/// The Gram matrix of up to so many atoms costs little even for one signal.
const FEW_ATOMS: usize = 512;

/// Most bytes of correlations at a time: at 131,072 signals of 512 atoms a launch is long enough to
/// fill the device, and larger ones were no faster.
const CHUNK_BYTES: usize = 256 << 20;

/// Most bytes of scratch of the global form; fewer blocks run where it is not enough.
const SCRATCH_BYTES: usize = 1 << 30;

/// Shared memory of `correlations_f32`: two stages of rows of f32 and of atoms in two parts, and
/// the rows in two parts.
pub(super) const CORRELATIONS_BYTES: usize = 2 * (128 * 36 * 4 + 2 * 128 * 40 * 2) + 2 * 128 * 40 * 2;

/// What `pursuit_blocks.cuh` declares of shared memory is less, and as much goes to the system in
/// each block.
const DECLARED_BY_BLOCKS: usize = 1024;
const OF_SYSTEM: usize = 1024;

/// What a plan goes by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub rule: Rule,
    pub m: usize,
    pub n: usize,
    pub p: usize,
    pub s: usize,
    /// Bytes of a number: 4 or 8.
    pub bytes: usize,
    pub nonnegative: bool,
    /// Whether samples miss.
    pub masked: bool,
}

impl Sizes {
    #[cfg(feature = "cuda")]
    pub(super) fn of(job: &super::job::Job) -> Self {
        let &super::job::Job { rule, m, n, p, s, nonnegative, .. } = job;
        let bytes = job.signals.dtype().size_in_bytes();
        Self { rule, m, n, p, s, bytes, nonnegative, masked: job.mask.is_some() }
    }
}

/// Where the directions `v` of a pursuit are kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Form {
    /// In the registers of the warps that have the signal, a copy of them in `bytes` of a block's
    /// shared memory.
    Registers { atoms: usize, steps: usize, team: usize, bytes: usize },
    /// The first in registers, the others in shared memory, of the block or the blocks that have
    /// the signal.
    Split(Split),
    /// In the shared memory of the block that has the signal, `bytes` of it.
    Shared { threads: usize, blocks: usize, bytes: usize },
    /// In global memory.
    Global { threads: usize, blocks: usize },
    /// Nowhere: all signals take a step together, and correlations are made anew from the
    /// residuals.
    Steps(Steps),
}

/// The form, and the sizes that follow from it.
#[derive(Debug)]
pub(super) struct Plan {
    pub form: Form,
    /// Whether rows of `G` are made in the kernel from the atoms: for signals with missing samples,
    /// each of which has a Gram matrix of its own, and for signals so few that they want fewer rows
    /// than `G` has.
    pub makes_rows: bool,
    /// Atoms with those of padding.
    pub width: usize,
    /// Features of an atom with those of padding, to whole packs of 16 bytes of numbers and of
    /// their f16 parts.
    pub line: usize,
    /// Signals at a time.
    pub chunk: usize,
    /// Numbers that a block of the shared and global forms keeps.
    pub memory_of_block: usize,
}

/// How some signals are pursued.
#[derive(Debug)]
pub(super) enum Way {
    /// By one launch of a kernel that has all of a pursuit, with `bytes` of shared memory, in
    /// clusters of so many blocks.
    AtOnce {
        kernel: String,
        blocks: usize,
        threads: usize,
        bytes: usize,
        cluster: usize,
    },
    BySteps(Steps),
}

impl Plan {
    /// `free_bytes` asks how much memory the device has left: a question that costs more than a
    /// small job, asked for large ones.
    pub(super) fn new(sizes: Sizes, limits: Limits, free_bytes: impl Fn() -> Result<usize>) -> Result<Self> {
        let Sizes { m, n, p, s, bytes: size, .. } = sizes;
        let line = p.next_multiple_of(if size == 8 { 2 } else { 8 });
        let table: &[_] = if size == 8 { &IN_REGISTERS_F64 } else { &IN_REGISTERS_F32 };
        let fits = table.iter().find(|&&(atoms, steps, team)| {
            let [asked, declared] = shared_by_registers(atoms, steps, team, size);
            n <= atoms && s <= steps && asked + declared <= limits.shared_bytes
        });
        let makes_rows = sizes.masked || (fits.is_none() && n > FEW_ATOMS && m * s < n);
        let plan =
            |form, width, memory_of_block| Self { form, makes_rows, width, line, chunk: m, memory_of_block };
        let plan = if let Some(&(atoms, steps, team)) = fits.filter(|_| !sizes.masked && !sizes.nonnegative) {
            let [bytes, _] = shared_by_registers(atoms, steps, team, size);
            plan(Form::Registers { atoms, steps, team, bytes }, atoms, 0)
        } else {
            let width = n.next_multiple_of(128);
            let one_by_one = makes_rows || sizes.nonnegative || size == 8;
            let steps =
                Steps::of(limits, m, width, line, s).filter(|_| !one_by_one && sizes.rule == Rule::Omp);
            let split = Split::of(limits, n, s)
                .filter(|split| !one_by_one && (steps.is_none() || split.is_faster_than_steps(line, s)));
            match (split, steps) {
                (Some(split), _) => plan(Form::Split(split), split.atoms, 0),
                (None, Some(steps)) => plan(Form::Steps(steps), width, 0),
                (None, None) => {
                    let memory = memory_of_block(sizes, makes_rows, width, line);
                    plan(in_block(sizes, limits, width, memory, &free_bytes)?, width, memory)
                }
            }
        };
        plan.in_chunks(size, s, free_bytes)
    }

    fn in_chunks(mut self, size: usize, s: usize, free_bytes: impl Fn() -> Result<usize>) -> Result<Self> {
        let (of_signal, most) = match self.form {
            Form::Steps(_) => (Steps::bytes_of_signal(self.line, s), Steps::MOST_BYTES),
            _ => (self.width * size, CHUNK_BYTES),
        };
        if !self.makes_rows && self.chunk * of_signal > most / 4 {
            let room = most.min(free_bytes()? / 4);
            self.chunk = self.chunk.min((room / of_signal).max(128));
        }
        Ok(self)
    }

    /// The same with at most so many signals at a time.
    pub(super) fn at_most(self, chunk: Option<usize>) -> Self {
        Self { chunk: chunk.map_or(self.chunk, |most| self.chunk.min(most).max(1)), ..self }
    }

    /// Atoms that a lane holds in a row, which decides their order in it; 0 for the order of the
    /// dictionary.
    pub(super) fn slots(&self) -> usize {
        match self.form {
            Form::Registers { atoms, team, .. } => atoms / (32 * team),
            Form::Split(_) => Split::SLOTS,
            _ => 0,
        }
    }

    /// The launches for `rows` signals.
    pub(super) fn way(&self, sizes: Sizes, rows: usize) -> Way {
        let made = if self.makes_rows { "rows_" } else { "" };
        let (name, blocks, threads, bytes, cluster) = match self.form {
            Form::Registers { atoms, steps, team, bytes } => {
                let signals = signals_of_block(team);
                (format!("{atoms}_{steps}"), rows.div_ceil(signals), 32 * team * signals, bytes, 1)
            }
            Form::Split(Split { team, cluster, bytes, .. }) => {
                (format!("split_{team}x{cluster}"), rows * cluster, 32 * team, bytes, cluster)
            }
            Form::Shared { threads, blocks, bytes } => (format!("{made}shared"), blocks, threads, bytes, 1),
            Form::Global { threads, blocks } => (format!("{made}global"), blocks, threads, 0, 1),
            Form::Steps(steps) => return Way::BySteps(steps),
        };
        let kernel = format!("{}_f{}_{name}", sizes.rule.file(), 8 * sizes.bytes);
        Way::AtOnce { kernel, blocks, threads, bytes, cluster }
    }
}

impl Rule {
    /// The file of its kernels.
    pub(super) fn file(self) -> &'static str {
        match self {
            Self::Omp => "bomp",
            Self::Ols => "ols",
        }
    }
}

/// Signals of a block of the register form: `SIGNALS` there.
fn signals_of_block(team: usize) -> usize {
    if team == 1 { 2 } else { 1 }
}

/// Shared memory of a block of the register form: copies of directions, which a launch asks for,
/// and what the kernel declares, a triangle for each signal and the candidates of two steps of each
/// warp.
fn shared_by_registers(atoms: usize, steps: usize, team: usize, size: usize) -> [usize; 2] {
    let signals = signals_of_block(team);
    let candidate = (2 * size + 4).next_multiple_of(size);
    [signals * (steps - 1) * atoms * size, signals * steps * 32 * size + 2 * team * candidate]
}

/// The form with a block for each signal, which keeps `memory` numbers.
fn in_block(
    sizes: Sizes,
    limits: Limits,
    width: usize,
    memory: usize,
    free_bytes: impl Fn() -> Result<usize>,
) -> Result<Form> {
    let size = sizes.bytes;
    // A pack a thread, as far as a block goes.
    let threads = (width * size / 16).clamp(32, 256).next_multiple_of(32);
    let by_threads = 1536 / threads;
    let bytes = memory * size;
    let in_all = bytes + DECLARED_BY_BLOCKS + OF_SYSTEM;
    if in_all <= limits.shared_bytes {
        // Blocks of a multiprocessor have together what one may have, and the system's part of it.
        let blocks =
            ((limits.shared_bytes + OF_SYSTEM) / in_all).clamp(1, by_threads) * limits.multiprocessors;
        return Ok(Form::Shared { threads, blocks: blocks.min(sizes.m), bytes });
    }
    let room = SCRATCH_BYTES.min(free_bytes()? / 4);
    let blocks = (room / bytes).clamp(1, by_threads * limits.multiprocessors);
    Ok(Form::Global { threads, blocks: blocks.min(sizes.m) })
}

/// The arrays that the head of `pursuit_blocks.cuh` lists, in numbers.
fn memory_of_block(sizes: Sizes, makes_rows: bool, width: usize, line: usize) -> usize {
    let s = sizes.s;
    let ols = usize::from(sizes.rule == Rule::Ols);
    let made = usize::from(makes_rows);
    let nonnegative = usize::from(sizes.nonnegative);
    let numbers = s * width + (1 + ols + made) * width + 2 * made * line;
    // Triangle, what is kept of each step, the chosen atoms' products and their factor, the atoms.
    let small = s * s + 7 * s + nonnegative * 2 * s * s + s;
    (numbers + small).next_multiple_of(32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    /// What `correlations_f64` declares of shared memory: two tiles of 16 features of 64 rows and
    /// one of padding.
    const CORRELATIONS_F64_BYTES: usize = 2 * 16 * 65 * 8;

    /// Shared memory of a block of each kernel of the plan, asked for and declared.
    fn shared(plan: &Plan, sizes: Sizes) -> Vec<(&'static str, usize)> {
        let mut kernels = match plan.form {
            Form::Registers { atoms, steps, team, .. } => {
                let both = shared_by_registers(atoms, steps, team, sizes.bytes);
                vec![("registers", both.iter().sum())]
            }
            Form::Split(split) => vec![("split", split.bytes)],
            Form::Shared { bytes, .. } => vec![("shared", bytes + DECLARED_BY_BLOCKS)],
            Form::Global { .. } => vec![("global", DECLARED_BY_BLOCKS)],
            Form::Steps(steps) => steps.shared().to_vec(),
        };
        match (plan.makes_rows, sizes.bytes) {
            (true, _) => {}
            (_, 8) => kernels.push(("correlations_f64", CORRELATIONS_F64_BYTES)),
            _ => kernels.push(("correlations_f32", CORRELATIONS_BYTES)),
        }
        kernels
    }

    /// Sizes at and about those where another form begins, with each rule, type and option.
    fn all_sizes() -> impl Iterator<Item = Sizes> {
        const M: [usize; 4] = [1, 100, 5000, 1_000_000];
        const N: [usize; 14] = [1, 100, 128, 129, 256, 257, 400, 512, 513, 1000, 1024, 1025, 2048, 8192];
        const P: [usize; 10] = [1, 16, 32, 64, 65, 96, 128, 136, 784, 4096];
        const S: [usize; 16] = [1, 2, 8, 9, 12, 16, 17, 20, 24, 32, 33, 64, 128, 256, 512, 600];
        let kinds = (0..16).map(|bits: usize| [bits & 1, bits & 2, bits & 4, bits & 8].map(|bit| bit > 0));
        kinds.flat_map(|[ols, double, nonnegative, masked]| {
            let rule = if ols { Rule::Ols } else { Rule::Omp };
            let bytes = if double { 8 } else { 4 };
            let kind = move |[m, n, p, s]: [usize; 4]| Sizes { rule, m, n, p, s, bytes, nonnegative, masked };
            let shapes = M.into_iter().flat_map(|m| N.into_iter().map(move |n| (m, n)));
            let shapes = shapes.flat_map(|(m, n)| P.into_iter().map(move |p| (m, n, p)));
            let shapes = shapes.flat_map(|(m, n, p)| S.into_iter().map(move |s| [m, n, p, s]));
            shapes.filter(|[_, n, _, s]| s <= n).map(kind)
        })
    }

    #[test]
    fn every_gpu_has_the_shared_memory_of_the_kernels_that_it_gets() -> Result<()> {
        for gpu in gpus::ALL {
            for sizes in all_sizes() {
                let plan = Plan::new(sizes, gpu, || Ok(8 << 30))?;
                for (kernel, bytes) in shared(&plan, sizes) {
                    assert!(
                        bytes <= gpu.shared_bytes,
                        "{gpu:?} has too little for {kernel} of {sizes:?}: {bytes} bytes"
                    );
                }
            }
        }
        Ok(())
    }

    #[test]
    fn plans_have_room_for_every_atom_feature_and_step() -> Result<()> {
        for sizes in all_sizes() {
            let Sizes { m, n, p, s, .. } = sizes;
            let plan = Plan::new(sizes, gpus::ALL[3], || Ok(8 << 30))?;
            assert!(plan.width >= n && plan.width % 128 == 0 && plan.line >= p, "{sizes:?}: {plan:?}");
            assert!((1..=m).contains(&plan.chunk) || plan.chunk == 128, "{sizes:?}: {plan:?}");
            match (plan.form, plan.way(sizes, plan.chunk.min(m))) {
                (Form::Registers { atoms, steps, .. }, _) => {
                    assert!(
                        n <= atoms && s <= steps && !sizes.masked && !sizes.nonnegative,
                        "{sizes:?}: {plan:?}"
                    );
                }
                (Form::Split(split), Way::AtOnce { blocks, threads, cluster, .. }) => {
                    let is_plain = !sizes.masked && !sizes.nonnegative && sizes.bytes == 4;
                    assert!(is_plain && !plan.makes_rows, "{sizes:?}: {plan:?}");
                    assert!(n <= split.atoms && s <= Split::MOST_STEPS, "{sizes:?}: {plan:?}");
                    assert_eq!(threads * cluster * Split::SLOTS, plan.width, "{sizes:?}: {plan:?}");
                    assert_eq!(blocks, plan.chunk.min(m) * cluster, "{sizes:?}: {plan:?}");
                }
                (_, Way::AtOnce { blocks, threads, .. }) => {
                    assert!(
                        (1..=m).contains(&blocks) && (32..=256).contains(&threads),
                        "{sizes:?}: {plan:?}"
                    );
                }
                (_, Way::BySteps(steps)) => {
                    let (along, splits) = steps.best_grid(gpus::ALL[3], m, plan.width);
                    assert!(along * Steps::TILE >= m && (1..=plan.width / Steps::TILE).contains(&splits));
                    assert!(
                        s <= Steps::MOST_STEPS && sizes.rule == Rule::Omp && !plan.makes_rows,
                        "{sizes:?}: {plan:?}"
                    );
                }
            }
        }
        Ok(())
    }

    #[test]
    fn a_block_that_fits_no_multiprocessor_keeps_its_directions_in_global_memory() -> Result<()> {
        // 40 directions of 1024 atoms: 170 KB.
        let sizes = Sizes {
            rule: Rule::Ols,
            m: 100,
            n: 1000,
            p: 64,
            s: 40,
            bytes: 4,
            nonnegative: true,
            masked: false,
        };
        let mut is_global = vec![];
        for gpu in gpus::ALL {
            is_global.push(matches!(Plan::new(sizes, gpu, || Ok(8 << 30))?.form, Form::Global { .. }));
        }
        assert_eq!(is_global, [true, true, true, false, false, true, true]);
        Ok(())
    }

    #[test]
    fn scratch_goes_by_the_memory_that_is_free() -> Result<()> {
        for free in [1 << 28, 1 << 30, 1 << 36] {
            for sizes in all_sizes() {
                let plan = Plan::new(sizes, gpus::ALL[3], || Ok(free))?;
                let (of_signal, most) = match plan.form {
                    Form::Steps(_) => (Steps::bytes_of_signal(plan.line, sizes.s), Steps::MOST_BYTES),
                    _ => (plan.width * sizes.bytes, CHUNK_BYTES),
                };
                // Where rows of G are made there are no correlations, and few signals are not worth
                // the question.
                let room = most.min((free / 4).max(most / 4)).max(128 * of_signal);
                assert!(
                    plan.makes_rows || plan.chunk * of_signal <= room,
                    "{free} bytes, {sizes:?}: {plan:?}"
                );
                if let Form::Global { blocks, .. } = plan.form {
                    let bytes = blocks * plan.memory_of_block * sizes.bytes;
                    assert!(
                        blocks == 1 || bytes <= SCRATCH_BYTES.min(free / 4),
                        "{free} bytes, {sizes:?}: {plan:?}"
                    );
                }
            }
        }
        Ok(())
    }
}
