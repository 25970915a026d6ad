//! The iterations.
use super::super::config::Phase;
use super::super::line::dims_of_ops;
use super::super::{Method, order};
use super::seconds::timed;
use super::{Progress, TsneTrainer};
use candle::Result;
use chandlery_ops::core::{Replay, set_scalars_};
use chandlery_ops::tsne::{Repulsion, layout_centre_, layout_move_};
use std::sync::Arc;

/// Iterations between two looks at the run.
const CHECK: usize = 50;
/// The same at the start of a phase and after a change, when the layout grows fast.
const FIRST_CHECK: usize = 25;
/// Iterations between two sorts of the points of a tree, from a check on.
const ARRANGE: usize = 10;

impl TsneTrainer {
    /// Goes on to the next look at the layout.
    pub(super) fn advance(&mut self) -> Result<Progress> {
        self.take_changes()?;
        let phase = self.config.phase(self.iteration);
        let device = self.state.layout.device().clone();
        let mut seconds = 0.;
        let progress = timed(&mut seconds, &device, || {
            self.sort()?;
            self.enter(phase)?;
            let until = self.next_check(phase);
            self.prepare_step()?;
            for iteration in self.iteration..until {
                if let Some((_, repulsion)) = &self.repulsion
                    && (iteration - self.iteration).is_multiple_of(ARRANGE)
                {
                    repulsion.arrange(&self.state.layout)?;
                }
                if let Some(replay) = &mut self.replay {
                    replay.run()?;
                }
            }
            self.iteration = until;
            self.look()
        })?;
        self.seconds.descent += seconds;
        Ok(progress)
    }

    /// The iteration before which the run is looked at next.
    fn next_check(&self, phase: Phase) -> usize {
        let (at, Phase { begin, end, .. }) = (self.iteration, phase);
        let since = at - self.config.last_change(at).map_or(begin, |change| change.max(begin));
        let every = if since < 4 * FIRST_CHECK { FIRST_CHECK } else { CHECK };
        let next = begin + (at - begin + every) / every * every;
        next.min(end).min(self.config.next_change(at).unwrap_or(end))
    }

    /// Takes the points in another order from here on, where that saves time.
    fn sort(&mut self) -> Result<()> {
        let n = self.affinities.n();
        let is_exact = self.config.method_for(n, self.state.layout.device().is_cuda()) == Method::Exact;
        if is_exact || !order::is_due(n, self.iteration, self.config.early_iterations) {
            return Ok(());
        }
        let is_first = !self.points.is_sorted();
        self.ranks.gather(&self.state)?;
        self.points.sort(&self.affinities, &self.state)?;
        if is_first {
            // The step was recorded with the graph as it was given.
            self.replay = None;
        }
        Ok(())
    }

    /// Sets what differs between phases.
    fn enter(&self, phase: Phase) -> Result<()> {
        let n = self.n_rows() as f64;
        let rate = phase.learning_rate.unwrap_or(n / phase.exaggeration);
        set_scalars_(&self.state.rates, &[rate as f32, phase.momentum as f32, phase.exaggeration as f32])
    }

    /// Makes the step for the layout as wide as it is.
    fn prepare_step(&mut self) -> Result<()> {
        let device = self.state.layout.device().clone();
        let n = self.affinities.n();
        let method = self.config.repulsion(n, &device, self.span);
        if let (Some(_), Some((of, _))) = (&self.replay, &self.repulsion)
            && *of == method
        {
            return Ok(());
        }
        let alpha = self.objective.degrees_of_freedom;
        let ranks = self.ranks.clone();
        let repulsion = Repulsion::new(method, n, dims_of_ops(self.config.n_dims), alpha, &device)?;
        let repulsion = Arc::new(repulsion.of_part(ranks.own.clone())?);
        self.repulsion = Some((method, repulsion.clone()));
        let (state, graph) = (self.state.clone(), self.points.graph.clone());
        let (forces, total) = (self.forces.clone(), self.total.clone());
        let step = self.config.of_objective(&self.objective).step();
        let replay = Replay::new(&device, move || {
            repulsion.repulsion_of_(&forces, &total, &state.layout, state.weights.as_ref())?;
            ranks.group.all_reduce_(&total)?;
            if repulsion.has_order() {
                ranks.group.all_reduce_(&forces)?;
            }
            layout_move_(&state, &graph, &forces, &total, &step, ranks.own.clone())?;
            layout_centre_(&state, &ranks.moved(&state)?, &step)
        });
        self.replay = Some(replay.unshared());
        Ok(())
    }

    /// Reads the figures; waits for the device.
    fn look(&mut self) -> Result<Progress> {
        let figures = self.state.figures()?;
        let [gradient_norm, span] =
            self.ranks.of_first([figures.gradient_norm, figures.span], &self.total)?;
        if !(gradient_norm.is_finite() && span.is_finite()) {
            candle::bail!(
                "TsneTrainer: the layout became infinite or NaN by iteration {}; lower the learning rate",
                self.iteration
            )
        }
        self.span = span;
        let [kl] = self.ranks.of_first([self.kl()?], &self.total)?;
        // A change at the last check came after its divergence.
        let comparable = |last: &Progress| !self.config.differs_between(last.iteration, self.iteration);
        let fall = |last: Progress| (last.kl - kl) / self.iteration.abs_diff(last.iteration).max(1) as f64;
        Ok(Progress {
            iteration: self.iteration,
            iterations: self.config.iterations_in_all(),
            kl,
            gradient_norm,
            span,
            fall: self.last.filter(comparable).map(fall),
        })
    }
}
