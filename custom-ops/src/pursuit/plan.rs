//! The choice of the kernels for a job on a GPU, by its sizes and the GPU's resources.
use super::job::Rule;
use crate::limits::Limits;
use candle::Result;

/// Atoms, steps, and warps that share a signal, that `pursuit_registers.cuh` was compiled for, cheapest first.
const IN_REGISTERS_F32: [(usize, usize, usize); 15] = [
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
    (512, 32, 4),
    (1024, 8, 2),
    (1024, 12, 4),
    (1024, 16, 4),
];
const IN_REGISTERS_F64: [(usize, usize, usize); 3] = [(128, 8, 1), (128, 16, 1), (256, 8, 1)];

/// Most bytes of correlations at a time: at 131,072 signals of 512 atoms a launch is long enough to fill the device, and
/// larger ones were no faster.
const CHUNK_BYTES: usize = 256 << 20;

/// Most bytes of scratch of the global form; fewer blocks run where it is not enough.
const SCRATCH_BYTES: usize = 1 << 30;

/// Most bytes that the form by steps keeps at a time.
const STEPS_BYTES: usize = 2 << 30;
/// Fewest correlations of a step that pay for its launches, and most steps, that it is for.
const STEPS_CORRELATIONS: usize = 1 << 22;
const STEPS: usize = 512;

/// Shared memory of `correlations_f32`: two stages of rows of f32 and of atoms in two parts, and the rows in two parts.
pub(super) const CORRELATIONS_BYTES: usize = 2 * (128 * 36 * 4 + 2 * 128 * 40 * 2) + 2 * 128 * 40 * 2;

/// What `pursuit_blocks.cuh` declares of shared memory is less, and as much goes to the system in each block.
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

/// Where the directions `v` of a pursuit are kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Form {
    /// In the registers of the warps that have the signal, a copy of them in `bytes` of a block's shared memory.
    Registers { atoms: usize, steps: usize, team: usize, bytes: usize },
    /// In the shared memory of the block that has the signal, `bytes` of it.
    Shared { threads: usize, blocks: usize, bytes: usize },
    /// In global memory.
    Global { threads: usize, blocks: usize },
    /// Nowhere: all signals take a step together, and correlations are made anew from the residuals.
    Steps(Steps),
}

/// The kernels of `pursuit_steps.cu`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Steps {
    /// Whether the residuals of a tile of signals stay in shared memory.
    pub resident: bool,
    pub best_bytes: usize,
    /// Threads that have a signal, four features each at a time.
    pub lanes: usize,
    pub step_bytes: usize,
}

impl Steps {
    /// Threads of a block.
    pub(super) const THREADS: usize = 256;
    /// Signals and atoms of a block of `best_atoms`, features at a time, and what is left free behind lines of shared memory:
    /// `TILE`, `DEPTH` and `PAD` there.
    pub(super) const TILE: usize = 128;
    const DEPTH: usize = 32;
    const PAD: usize = 8;
    /// Both parts of a slice of a tile.
    const SLICE_BYTES: usize = 2 * Self::TILE * (Self::DEPTH + Self::PAD) * 2;
    /// The most features whose tile of residuals stays in shared memory.
    const RESIDENT: usize = 128;
    /// What the kernels declare: the signals of a tile, and two counters.
    const DECLARED: [usize; 2] = [Self::TILE * 4, 16];

    /// For lines of so many features and `s` steps; none where a block of this GPU has too little shared memory.
    fn of(limits: Limits, line: usize, s: usize) -> Option<Self> {
        let has = |bytes: usize, declared: usize| bytes + declared <= limits.shared_bytes;
        let [by_best, by_step] = Self::DECLARED;
        // Three slices of atoms and all of the residuals, or two slices of both.
        let line_bytes = (line.next_multiple_of(Self::DEPTH) + Self::PAD) * 2;
        let resident_bytes = 3 * Self::SLICE_BYTES + 2 * Self::TILE * line_bytes;
        let resident = line <= Self::RESIDENT && has(resident_bytes, by_best);
        let best_bytes = if resident { resident_bytes } else { 4 * Self::SLICE_BYTES };
        let lanes = if line <= 64 && s <= 32 { 16 } else { 32 };
        // `Scratch` there, for each signal.
        let step_bytes = Self::THREADS / lanes * (3 * s + s % 2 + lanes * (lanes + 1)) * 4;
        let steps = Self { resident, best_bytes, lanes, step_bytes };
        (has(best_bytes, by_best) && has(step_bytes, by_step)).then_some(steps)
    }

    /// Blocks of `best_atoms` for `m` signals, along them and along the atoms: few signals share the atoms among several blocks, for
    /// two waves of two blocks on each multiprocessor.
    pub(super) fn best_grid(&self, limits: Limits, m: usize, width: usize) -> (usize, usize) {
        let (tiles, atom_tiles) = (m.div_ceil(Self::TILE), width / Self::TILE);
        (tiles, (4 * limits.multiprocessors).div_ceil(tiles).min(atom_tiles))
    }

    /// Signals of a block of `pursuit_step`.
    pub(super) fn teams(&self) -> usize {
        Self::THREADS / self.lanes
    }
}

/// The form, and the sizes that follow from it.
#[derive(Debug)]
pub(super) struct Plan {
    pub form: Form,
    /// Whether rows of `G` are made in the kernel from the atoms: for signals with missing samples, each of which has a Gram
    /// matrix of its own, and for signals so few that they want fewer rows than `G` has.
    pub makes_rows: bool,
    /// Atoms with those of padding.
    pub width: usize,
    /// Features of an atom with those of padding, to whole packs of 16 bytes of numbers and of their f16 parts.
    pub line: usize,
    /// Signals at a time.
    pub chunk: usize,
    /// Numbers that a block of the shared and global forms keeps.
    pub memory_of_block: usize,
}

/// How some signals are pursued.
#[derive(Debug)]
pub(super) enum Way {
    /// By one launch of a kernel that has all of a pursuit, with `bytes` of shared memory.
    AtOnce {
        kernel: String,
        blocks: usize,
        threads: usize,
        bytes: usize,
    },
    BySteps(Steps),
}

impl Plan {
    /// `free_bytes` asks how much memory the device has left: a question that costs more than a small job, asked for large ones.
    pub(super) fn new(sizes: Sizes, limits: Limits, free_bytes: impl Fn() -> Result<usize>) -> Result<Self> {
        let Sizes { m, n, p, s, bytes: size, .. } = sizes;
        let line = p.next_multiple_of(if size == 8 { 2 } else { 8 });
        let table: &[_] = if size == 8 { &IN_REGISTERS_F64 } else { &IN_REGISTERS_F32 };
        let fits = table.iter().find(|&&(atoms, steps, team)| {
            let [asked, declared] = shared_by_registers(atoms, steps, team, size);
            n <= atoms && s <= steps && asked + declared <= limits.shared_bytes
        });
        let makes_rows = sizes.masked || (fits.is_none() && m * s < n);
        let plan =
            |form, width, memory_of_block| Self { form, makes_rows, width, line, chunk: m, memory_of_block };
        let plan = if let Some(&(atoms, steps, team)) = fits.filter(|_| !sizes.masked && !sizes.nonnegative) {
            let [bytes, _] = shared_by_registers(atoms, steps, team, size);
            plan(Form::Registers { atoms, steps, team, bytes }, atoms, 0)
        } else {
            let width = n.next_multiple_of(128);
            let one_by_one = makes_rows || sizes.nonnegative || sizes.rule == Rule::Ols || size == 8;
            let many = m * width >= STEPS_CORRELATIONS && s <= STEPS;
            match Steps::of(limits, line, s).filter(|_| many && !one_by_one) {
                Some(steps) => plan(Form::Steps(steps), width, 0),
                None => {
                    let memory = memory_of_block(sizes, makes_rows, width, line);
                    plan(in_block(sizes, limits, width, memory, &free_bytes)?, width, memory)
                }
            }
        };
        plan.in_chunks(size, s, free_bytes)
    }

    fn in_chunks(mut self, size: usize, s: usize, free_bytes: impl Fn() -> Result<usize>) -> Result<Self> {
        let (of_signal, most) = match self.form {
            Form::Steps(_) => (bytes_of_steps(self.line, s), STEPS_BYTES),
            _ => (self.width * size, CHUNK_BYTES),
        };
        if !self.makes_rows && self.chunk * of_signal > most / 4 {
            let room = most.min(free_bytes()? / 4);
            self.chunk = self.chunk.min((room / of_signal).max(128));
        }
        Ok(self)
    }

    /// Atoms that a lane holds in a row, which decides their order in it; 0 for the order of the dictionary.
    pub(super) fn slots(&self) -> usize {
        match self.form {
            Form::Registers { atoms, team, .. } => atoms / (32 * team),
            _ => 0,
        }
    }

    /// The launches for `rows` signals.
    pub(super) fn way(&self, sizes: Sizes, rows: usize) -> Way {
        let made = if self.makes_rows { "rows_" } else { "" };
        let (name, blocks, threads, bytes) = match self.form {
            Form::Registers { atoms, steps, team, bytes } => {
                let signals = signals_of_block(team);
                (format!("{atoms}_{steps}"), rows.div_ceil(signals), 32 * team * signals, bytes)
            }
            Form::Shared { threads, blocks, bytes } => (format!("{made}shared"), blocks, threads, bytes),
            Form::Global { threads, blocks } => (format!("{made}global"), blocks, threads, 0),
            Form::Steps(steps) => return Way::BySteps(steps),
        };
        let kernel = format!("{}_f{}_{name}", sizes.rule.file(), 8 * sizes.bytes);
        Way::AtOnce { kernel, blocks, threads, bytes }
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

/// Shared memory of a block of the register form: copies of directions, which a launch asks for, and what the kernel declares, a triangle
/// for each signal and the candidates of two steps of each warp.
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

/// What the form by steps keeps of a signal: the residual, whole and in parts, directions, and a few numbers.
fn bytes_of_steps(line: usize, s: usize) -> usize {
    8 * line + 2 * s * (s + 1) + 32
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
    use crate::limits::gpus;

    /// What `correlations_f64` declares of shared memory: two tiles of 16 features of 64 rows and one of padding.
    const CORRELATIONS_F64_BYTES: usize = 2 * 16 * 65 * 8;

    /// Shared memory of a block of each kernel of the plan, asked for and declared.
    fn shared(plan: &Plan, sizes: Sizes) -> Vec<(&'static str, usize)> {
        let mut kernels = match plan.form {
            Form::Registers { atoms, steps, team, .. } => {
                let both = shared_by_registers(atoms, steps, team, sizes.bytes);
                vec![("registers", both.iter().sum())]
            }
            Form::Shared { bytes, .. } => vec![("shared", bytes + DECLARED_BY_BLOCKS)],
            Form::Global { .. } => vec![("global", DECLARED_BY_BLOCKS)],
            Form::Steps(steps) => {
                let [by_best, by_step] = Steps::DECLARED;
                vec![("best_atoms", steps.best_bytes + by_best), ("pursuit_step", steps.step_bytes + by_step)]
            }
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
                (_, Way::AtOnce { blocks, threads, .. }) => {
                    assert!(
                        (1..=m).contains(&blocks) && (32..=256).contains(&threads),
                        "{sizes:?}: {plan:?}"
                    );
                }
                (_, Way::BySteps(steps)) => {
                    let (along, splits) = steps.best_grid(gpus::ALL[3], m, plan.width);
                    assert!(along * Steps::TILE >= m && (1..=plan.width / Steps::TILE).contains(&splits));
                    assert!(s <= STEPS && sizes.rule == Rule::Omp && !plan.makes_rows, "{sizes:?}: {plan:?}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn residuals_stay_in_shared_memory_where_it_holds_a_tile_of_them() {
        let resident =
            |gpu| [32, 64, 96, 128, 136].map(|line| Steps::of(gpu, line, 20).map(|steps| steps.resident));
        let (large, small) =
            ([true, true, true, true, false].map(Some), [true, true, false, false, false].map(Some));
        assert_eq!(gpus::ALL.map(resident), [large, small, small, large, large, small, small]);
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
            nonnegative: false,
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
                    Form::Steps(_) => (bytes_of_steps(plan.line, sizes.s), STEPS_BYTES),
                    _ => (plan.width * sizes.bytes, CHUNK_BYTES),
                };
                // Where rows of G are made there are no correlations, and few signals are not worth the question.
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
