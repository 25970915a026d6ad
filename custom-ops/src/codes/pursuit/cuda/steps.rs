//! The launches of `kernels/codes/pursuit_steps.cu`.
use super::problem::Steps;
use super::{Call, Codes, warps};
use crate::codes::pursuit::plan;
use candle::Result;
use candle::cuda::cudarc::driver::result;
use candle::cuda::{CudaDType, WrapErr};

const FILE: &str = "pursuit_steps";

impl<T: CudaDType> Call<'_, T> {
    /// All steps of the pursuits of `rows` signals from `first` on.
    pub(super) fn take_steps(
        &self,
        kernels: plan::Steps,
        first: usize,
        rows: usize,
        codes: &Codes,
    ) -> Result<()> {
        let Self { job, gpu, .. } = self;
        let mut steps = self.steps(first, rows, codes)?;
        let stream = gpu.device().cuda_stream();
        // SAFETY: the s + 1 counters of the workspace, in the order of the stream.
        unsafe { result::memset_d8_async(steps.left, 0, (job.s + 1) * 4, stream.cu_stream()) }.w()?;
        let launch = gpu.launch(job.op, FILE, "begin_pursuit")?.num(steps);
        // SAFETY: all three take a Steps by value; its arrays were sized for `rows` signals, s
        // steps and the plan's width and line (Workspace::new), and those who call hold their
        // addresses until all is queued.
        unsafe { warps(launch, rows).go() }?;

        let best = if kernels.resident { "best_atoms_resident" } else { "best_atoms_streamed" };
        let step = if kernels.lanes == 16 { "pursuit_step_16" } else { "pursuit_step_32" };
        let grid = kernels.best_grid(gpu.limits(), rows, self.plan.width);
        let threads = plan::Steps::THREADS as u32;
        for k in 0..steps.s {
            steps.step = k;
            let launch = gpu.launch(job.op, FILE, best)?.num(steps).shared(kernels.best_bytes);
            // SAFETY: as above.
            unsafe { launch.grid([grid.0, grid.1, 1], (threads, 1, 1)).go() }?;
            let launch = gpu.launch(job.op, FILE, step)?.num(steps).shared(kernels.step_bytes);
            // SAFETY: as above.
            unsafe { launch.blocks(rows.div_ceil(kernels.teams()), threads).go() }?;
        }
        Ok(())
    }

    fn steps(&self, first: usize, rows: usize, codes: &Codes) -> Result<Steps> {
        let Self { job, plan, space, .. } = self;
        let parts = &space.steps;
        Ok(Steps {
            signals: self.signals_from(first),
            unit: self.at(space.unit),
            unit_halves: self.at(space.unit_halves),
            gram: self.at(space.gram),
            inverse_norms: self.at(space.inverse_norms),
            targets: self.targets_from(first),
            residuals: self.at(parts.residuals),
            halves: self.at(parts.halves),
            states: self.at(parts.states),
            triangles: self.at(parts.triangles),
            best: self.at(parts.best),
            lists: self.at(parts.lists),
            left: self.at(parts.left),
            indices: codes.indices,
            values: codes.values,
            counts: codes.counts,
            refused: self.refused,
            target: self.target.1,
            m: rows,
            p: self.count(job.p)?,
            line: self.count(plan.line)?,
            width: self.count(plan.width)?,
            s: self.count(job.s)?,
            target_kind: self.target.0 as u32,
            step: 0,
        })
    }
}
