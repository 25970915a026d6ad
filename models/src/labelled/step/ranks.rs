//! What the ranks of a group learn together, each from its own rows of a minibatch, by one sum over
//! ranks.
//!
//! ```text
//! Vᵣ ← [r = 0] μ V + ε/B Gᵣ,   V ← Σᵣ Vᵣ         a matrix: the sum of products over the rows of rank r is Gᵣ
//! g ← Σᵣ gᵣ/B,   v ← μ v + ε g                    biases
//! ```
//!
//! Decay, and the step by the velocities, are those of one rank, made by all. The weights of labels
//! have a rate of their own, and so lie apart; their velocity is summed with the others in a copy.
use super::super::LabelledDbn;
use super::matrix::Matrix;
use super::{Buffers, Directed, H_DRAWN, Rates, SEEN};
use crate::flat::{self, Flat, Places};
use crate::share::Share;
use crate::side_sums::{Part, SideSums};
use candle::{Result, Tensor};
use chandlery_ops::Group;
use chandlery_ops::arrays::scale_into_;
use chandlery_ops::core::advance_;
use chandlery_ops::layers::{BiasStep, Factors, Phases, WeightStep, gemm_, weight_step_};

/// The hidden side of the RBM on top, whose negative plane has its sign.
const HIDDEN: BiasStep<'static> = BiasStep { phases: Phases::Sum, gather_error: false, ..SEEN };

/// What makes a velocity: `a`, `b` and the factors of products `aᵀ b`.
struct Products<'a> {
    velocity: &'a Tensor,
    products: Vec<(Tensor, Tensor, &'a Tensor)>,
}

/// Units with biases, and how these learn.
struct Side<'a> {
    /// `[4, n]`
    state: &'a Tensor,
    /// `[2, rows, n]`
    planes: Tensor,
    /// `[_, μ, ε]`
    rates: &'a Tensor,
    step: BiasStep<'static>,
}

/// Memory of all matrices that learn but that of labels, and of what the ranks sum. Clones share
/// it.
#[derive(Clone)]
pub(super) struct Together {
    flat: Flat,
    zeros: Tensor,
    /// In the order of the sides of buffers.
    sides: Vec<SideSums>,
    /// The velocity of the weights of labels, `[n_hidden, n_classes]`.
    label_velocity: Tensor,
    part: Part,
}

impl Together {
    /// The same for another share.
    pub(super) fn by(&self, share: &Share) -> Result<Self> {
        Ok(Self { part: Part::of(share, self.zeros.device())?, ..self.clone() })
    }
}

impl Buffers {
    /// Buffers for this rank's share of minibatches of as many rows, on the same parameters, which
    /// all ranks have from the first: with its chains of those of one rank.
    pub(in super::super) fn in_group(&self, dbn: &LabelledDbn, group: &Group) -> Result<Self> {
        let mut buffers = self.with(dbn, Share::new(group, self.share.of()))?;
        self.lend_chains(&buffers)?;
        buffers.lie_together()?;
        Ok(buffers)
    }

    /// Moves all matrices that learn but that of labels to one piece of memory, with what ranks sum
    /// behind them.
    fn lie_together(&mut self) -> Result<()> {
        let (mut at, mut of_sums) = (Places::default(), Places::default());
        let mut places = vec![];
        for matrix in self.matrices() {
            places.push(at.take(matrix.weight.elem_count()));
        }
        let sizes: Vec<usize> = self.sides()?.iter().map(|side| side.state.dim(1)).collect::<Result<_>>()?;
        let sides: Vec<_> = sizes.iter().map(|&n| (of_sums.take(SideSums::len(n, false)), n)).collect();
        let label_velocity = self.top.label_params.get(1)?;
        let of_labels = of_sums.take(label_velocity.elem_count());
        let flat = Flat::new(at.len(), of_sums.len(), self.counter.device())?;
        for (matrix, place) in self.matrices().into_iter().zip(places) {
            *matrix = matrix.moved(&flat, place)?;
        }
        let sums = flat.sums()?;
        let side = |(start, n)| SideSums::of(&sums, start, n, false);
        self.together = Some(Together {
            zeros: sums.zeros_like()?,
            sides: sides.into_iter().map(side).collect::<Result<_>>()?,
            label_velocity: flat::view(&sums, of_labels, label_velocity.dims())?,
            part: Part::of(&self.share, self.counter.device())?,
            flat,
        });
        Ok(())
    }

    /// All that learn but that of labels.
    fn matrices(&mut self) -> Vec<&mut Matrix> {
        // Without fantasies the layers below the top do not.
        let n = self.sleep.len();
        let layers = self.recognition.iter_mut().take(n).chain(self.generative.iter_mut().take(n));
        layers.map(|layer| &mut layer.matrix).chain([&mut self.top.matrix]).collect()
    }

    /// This rank's Gibbs chains, `[rows, n_hidden]`.
    pub(in super::super) fn chains(&self) -> Result<Tensor> {
        self.top.hidden.get(H_DRAWN)
    }

    /// The same of all ranks, which make the call together.
    pub(in super::super) fn chains_of_all(&self) -> Result<Tensor> {
        self.share.gathered(&self.chains()?)
    }

    /// Gives chains, the first of all ranks, to buffers of as many rows or fewer.
    pub(in super::super) fn lend_chains(&self, to: &Self) -> Result<()> {
        self.share.lend(&self.chains()?, &to.share, &to.chains()?)
    }

    /// Takes them back after a step.
    pub(in super::super) fn take_chains(&self, from: &Self) -> Result<()> {
        self.share.take_back(&self.chains()?, &from.share, &from.chains()?)
    }

    /// Makes the step of all ranks, and moves the counter on by `advance`.
    pub(super) fn learn_together(&self, together: &Together, advance: i64) -> Result<()> {
        let Together { flat, zeros, sides, label_velocity, part } = together;
        let Rates { first, label, .. } = &self.rates;
        let (summed, label_params) = (flat.summed()?, &self.top.label_params);
        if self.share.rows().is_empty() {
            scale_into_(&summed, &summed.zeros_like()?, 1.)?;
        } else {
            scale_into_(&flat.sums()?, zeros, 1.)?;
            scale_into_(label_velocity, &label_params.get(1)?, 1.)?;
            for Products { velocity, products } in self.products(label_velocity)? {
                for (a, b, factors) in products {
                    gemm_(velocity, &a.t()?, &b, Factors::Tensor(factors), self.config.precision)?;
                }
            }
            for (side, sums) in self.sides()?.iter().zip(sides) {
                sums.add(&side.planes, part, side.step)?;
            }
        }
        self.share.group().all_reduce_(&summed)?;
        let decay = WeightStep { l1: 0., l2: self.config.l2 as f32 };
        weight_step_(&flat.params()?, first, decay)?;
        scale_into_(&label_params.get(1)?, label_velocity, 1.)?;
        weight_step_(label_params, label, decay)?;
        for (Side { state, rates, step, .. }, sums) in self.sides()?.into_iter().zip(sides) {
            sums.learn(state, part, rates, step)?;
        }
        advance_(&self.counter, advance)
    }

    fn products<'a>(&'a self, label_velocity: &'a Tensor) -> Result<Vec<Products<'a>>> {
        let Self { rates, top, wake, .. } = self;
        let mut all = Vec::new();
        for (layer, below, planes) in self.directed() {
            let products = Directed::products(below, planes, rates)?.to_vec();
            all.push(Products { velocity: &layer.matrix.velocity, products });
        }
        let h = top.hidden.narrow(0, 0, 2)?.flatten(0, 1)?;
        let visible = wake[self.recognition.len()].flatten(0, 1)?;
        let products = vec![(h.clone(), top.labels.flatten(0, 1)?, &rates.label_product)];
        all.push(Products { velocity: label_velocity, products });
        let products = vec![(h, visible, &rates.product)];
        all.push(Products { velocity: &top.matrix.velocity, products });
        Ok(all)
    }

    fn sides(&self) -> Result<Vec<Side<'_>>> {
        let Self { rates: Rates { first, label, .. }, top, wake, .. } = self;
        let side = |state, planes: &Tensor, rates, step| Side { state, planes: planes.clone(), rates, step };
        let hidden = top.hidden.narrow(0, 0, 2)?;
        let layers = self.directed().into_iter();
        let layers = layers.map(|(layer, _, planes)| side(&layer.state, planes, first, SEEN));
        let of_top = [
            side(&top.hidden_state, &hidden, first, HIDDEN),
            side(&top.visible_state, &wake[self.recognition.len()], first, SEEN),
            side(&top.label_state, &top.labels, label, SEEN),
        ];
        Ok(layers.chain(of_top).collect())
    }
}
