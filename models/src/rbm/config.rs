//! What an RBM is, and how it is trained.
use super::division::Division;
use crate::check::{at_least_one, range};
use crate::conv_rbm::ConvGrid;
use crate::layers::StackedConfig;
use crate::prepare::check_inputs;
use crate::schedule::{Plan, Schedule};
use candle::Result;
use chandlery_datasets::Preparation;
use chandlery_ops::Precision;
use chandlery_ops::images::PatchGrid;
use serde::{Deserialize, Serialize};

/// What the visible units hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VisibleUnit {
    /// 0 or 1, or probabilities in `[0, 1]` such as grey levels.
    #[default]
    Bernoulli,
    /// Real numbers with standard deviation 1 about their mean: standardised or whitened data.
    Gaussian,
    /// Real numbers with a standard deviation for each unit, learned (Cho, Ilin and Raiko 2011).
    GaussianLearned,
}

impl VisibleUnit {
    /// Whether the units are real-valued.
    pub fn is_gaussian(self) -> bool {
        self != Self::Bernoulli
    }
}

/// The name that command lines and files use.
impl std::fmt::Display for VisibleUnit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Bernoulli => "bernoulli",
            Self::Gaussian => "gaussian",
            Self::GaussianLearned => "gaussian-learned",
        })
    }
}

/// What the hidden units hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HiddenUnit {
    /// 0 or 1.
    #[default]
    Bernoulli,
    /// `max(0, x + N(0, sigmoid(x)))`: noisy rectified units (Nair and Hinton 2010).
    Rectified,
    /// `x + N(0, 1)`: real numbers, for the code layer of an autoencoder (Hinton and Salakhutdinov
    /// 2006).
    Gaussian,
}

impl HiddenUnit {
    /// What the visible units of an RBM on top of these must be.
    pub fn as_visible(self) -> VisibleUnit {
        match self {
            Self::Bernoulli => VisibleUnit::Bernoulli,
            Self::Rectified | Self::Gaussian => VisibleUnit::Gaussian,
        }
    }
}

/// The name that command lines and files use.
impl std::fmt::Display for HiddenUnit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Bernoulli => "bernoulli",
            Self::Rectified => "rectified",
            Self::Gaussian => "gaussian",
        })
    }
}

/// Which visible units a hidden unit sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RbmConnections {
    /// All of them.
    #[default]
    Dense,
    /// Those of a window of a grid of visible units: each window is seen by hidden units of its
    /// own. See [`patch_rbm`](crate::patch_rbm).
    Patches(PatchGrid),
    /// Those of a window of a grid, by filters that lie at every place of it and give maps of
    /// hidden units. See [`conv_rbm`](crate::conv_rbm).
    Filters(ConvGrid),
}

impl RbmConnections {
    /// Whether a hidden unit sees all visible ones.
    pub fn is_dense(&self) -> bool {
        *self == Self::Dense
    }
}

/// What an [`Rbm`](super::Rbm) is; nothing here changes while it trains.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RbmConfig {
    /// Visible units, at least 1.
    pub n_visible: usize,
    /// Hidden units, at least 1.
    pub n_hidden: usize,
    /// Which visible units a hidden unit sees. Default: all.
    #[serde(default, skip_serializing_if = "RbmConnections::is_dense")]
    pub connections: RbmConnections,
    /// What the visible units hold.
    #[serde(default)]
    pub visible: VisibleUnit,
    /// What the hidden units hold.
    #[serde(default)]
    pub hidden: HiddenUnit,
    /// Standard deviation of the initial weights, above 0. Default 0.01: small enough that hidden
    /// units start near a fair coin, large enough to tell them apart (Hinton 2010, section 8).
    #[serde(default = "default_weight_stdev")]
    pub weight_stdev: f64,
    /// What is done to raw rows before the visible units hold them. Default: floats as they are,
    /// bytes over 255. In a network the network's stands in its place.
    #[serde(default, skip_serializing_if = "Preparation::is_default")]
    pub preparation: Preparation,
}

crate::model::model_config!(RbmConfig, |config: &RbmConfig| config.n_visible);

fn default_weight_stdev() -> f64 {
    0.01
}

impl RbmConfig {
    /// Sizes have no default; everything else does.
    pub fn new(n_visible: usize, n_hidden: usize) -> Self {
        Self {
            n_visible,
            n_hidden,
            connections: RbmConnections::Dense,
            visible: VisibleUnit::default(),
            hidden: HiddenUnit::default(),
            weight_stdev: default_weight_stdev(),
            preparation: Preparation::default(),
        }
    }

    /// The windows that hidden units see; none where weights are dense or those of filters.
    pub fn patch_grid(&self) -> Option<PatchGrid> {
        match self.connections {
            RbmConnections::Patches(grid) => Some(grid),
            RbmConnections::Dense | RbmConnections::Filters(_) => None,
        }
    }

    /// Filters and their maps; none where weights are not shared.
    pub fn filter_grid(&self) -> Option<ConvGrid> {
        match self.connections {
            RbmConnections::Filters(grid) => Some(grid),
            RbmConnections::Dense | RbmConnections::Patches(_) => None,
        }
    }

    /// The shape of the weights: `[n_hidden, n_visible]`,
    /// `[n_patches, hidden units of a patch, values of a window]`, or
    /// `[n_filters, values of a filter]`.
    pub fn weight_shape(&self) -> Vec<usize> {
        match &self.connections {
            RbmConnections::Dense => vec![self.n_hidden, self.n_visible],
            RbmConnections::Patches(grid) => {
                vec![grid.n_patches(), self.n_hidden / grid.n_patches(), grid.window_len()]
            }
            RbmConnections::Filters(grid) => vec![grid.n_filters, grid.shape().filter_len()],
        }
    }

    /// The grid that the hidden units form, as height, width and units of a place: a place for each
    /// patch, or for each block of pooled units of a convolution's maps. None for an RBM with
    /// neither.
    pub fn hidden_places(&self) -> Option<[usize; 3]> {
        match &self.connections {
            RbmConnections::Patches(grid) => {
                Some([grid.down(), grid.across(), self.n_hidden / grid.n_patches()])
            }
            RbmConnections::Filters(grid) => {
                Some([grid.maps_height() / grid.pool, grid.maps_width() / grid.pool, grid.n_filters])
            }
            RbmConnections::Dense => None,
        }
    }

    /// The grid on which patches or filters lie, as planes, height, width and depth. None for an
    /// RBM with neither.
    pub fn visible_places(&self) -> Option<[usize; 4]> {
        match &self.connections {
            RbmConnections::Patches(grid) => Some([grid.planes, grid.height, grid.width, grid.depth]),
            RbmConnections::Filters(grid) => Some([grid.planes, grid.height, grid.width, grid.depth]),
            RbmConnections::Dense => None,
        }
    }

    /// Hidden biases: one for each hidden unit, or for each map of a convolution.
    pub fn n_hidden_biases(&self) -> usize {
        self.filter_grid().map_or(self.n_hidden, |grid| grid.n_filters)
    }

    /// Visible biases: one for each visible unit, or for each channel of a convolution.
    pub fn n_visible_biases(&self) -> usize {
        self.filter_grid().map_or(self.n_visible, |grid| grid.channels())
    }

    /// Parameters: weights, biases and learned variances.
    pub fn n_parameters(&self) -> usize {
        let variances = match self.visible {
            VisibleUnit::GaussianLearned => self.n_visible,
            VisibleUnit::Bernoulli | VisibleUnit::Gaussian => 0,
        };
        let weights = self.weight_shape().iter().product::<usize>();
        weights + self.n_hidden_biases() + self.n_visible_biases() + variances
    }

    /// Hidden units of a row that are drawn: those of the maps of a convolution, before they are
    /// pooled.
    pub(crate) fn n_units(&self) -> usize {
        self.filter_grid().map_or(self.n_hidden, |grid| grid.n_units())
    }

    /// # Errors
    /// When a size is 0, `weight_stdev` is not a finite number above 0, the preparation gives rows
    /// of another width, patches do not tile their grid or blocks of pooled units their maps (then
    /// the message names the nearest sizes that fit), they have other numbers of units, or a
    /// convolution has units that it cannot have.
    pub fn validate(&self) -> Result<()> {
        at_least_one("RbmConfig", "n_visible", self.n_visible)?;
        at_least_one("RbmConfig", "n_hidden", self.n_hidden)?;
        if let Some(grid) = self.patch_grid() {
            grid.validate("RbmConfig")?;
            if self.n_visible != grid.n_values() {
                candle::bail!(
                    "RbmConfig: n_visible must be the {} values of the grid of patches, got {}",
                    grid.n_values(),
                    self.n_visible
                )
            }
            let n_patches = grid.n_patches();
            if !self.n_hidden.is_multiple_of(n_patches) {
                candle::bail!(
                    "RbmConfig: n_hidden must be a multiple of the {n_patches} patches, got {}",
                    self.n_hidden
                )
            }
        }
        if let Some(grid) = self.filter_grid() {
            self.check_convolution(&grid)?;
        }
        range("RbmConfig", "weight_stdev", self.weight_stdev, "a finite number above 0", |x| x > 0.)?;
        check_inputs("RbmConfig", &self.preparation, self.n_visible, None).map(drop)
    }
}

impl RbmConfig {
    fn check_convolution(&self, grid: &ConvGrid) -> Result<()> {
        grid.validate("RbmConfig")?;
        for (name, got, want) in
            [("n_visible", self.n_visible, grid.n_values()), ("n_hidden", self.n_hidden, grid.n_pooled())]
        {
            if got != want {
                candle::bail!("RbmConfig: {name} must be {want}, as the convolution has it, got {got}")
            }
        }
        if self.hidden != HiddenUnit::Bernoulli {
            candle::bail!("RbmConfig: hidden units of a convolution must be bernoulli, got {}", self.hidden)
        }
        if self.visible == VisibleUnit::GaussianLearned {
            candle::bail!(
                "RbmConfig: visible units of a convolution must be bernoulli or gaussian, got gaussian-learned"
            )
        }
        Ok(())
    }
}

impl StackedConfig for RbmConfig {
    const STACK: &'static str = "DbnConfig";
    const LAYER: &'static str = "RBM";

    fn of_sizes(n_visible: usize, n_hidden: usize) -> Self {
        Self::new(n_visible, n_hidden)
    }

    fn n_made(&self) -> usize {
        self.n_hidden
    }

    /// Visible units must be of the kind of the hidden units below, and lie on their grid.
    fn check_above(&self, below: &Self, i: usize) -> Result<()> {
        if let (Some([height, width, depth]), Some(got)) = (below.hidden_places(), self.visible_places())
            && got != [1, height, width, depth]
        {
            candle::bail!(
                "DbnConfig: layers[{}] must lie on the hidden units of layers[{i}], a grid of {height}x{width} places of {depth}, \
                 got {got:?} as planes, height, width and depth",
                i + 1
            )
        }
        let want = below.hidden.as_visible();
        if self.visible != want {
            candle::bail!(
                "DbnConfig: layers[{}].visible must be {want}, since layers[{i}].hidden is {}, got {}",
                i + 1,
                below.hidden,
                self.visible
            )
        }
        Ok(())
    }
}

/// A wish for the mean activation of the hidden units (Lee, Ekanadham and Ng 2007).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SparsityConfig {
    /// Mean activation wanted of each hidden unit, in (0, 1). Typical: .01 to .1.
    pub target: f64,
    /// Weight of the wish against the likelihood's gradient, above 0. Typical: .1 to 5.
    pub cost: f64,
    /// Decay of the running mean activation that is compared with the target, in [0, 1). 0.9
    /// steadies small minibatches; 0 takes each by itself, as in the paper.
    pub decay: f64,
}

/// How the weights of an RBM are stored while it trains. A model is saved in f32 whatever they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WeightStorage {
    /// As f32 numbers; products read copies in their precision.
    #[default]
    F32,
    /// As bf16 numbers, which products read as they are; each update rounds them stochastically
    /// ([`round_stochastic`](chandlery_ops::layers::round_stochastic)) and stores a bf16 velocity.
    /// 4 bytes a weight in place of 8, and updates of large layers move 8 bytes a weight in place
    /// of 14.
    ///
    /// For dense layers (fast ones have sizes that are multiples of 4), with [`Precision::Bf16`]
    /// and without `max_norm`. Updates far below the spacing of bf16 numbers add noise: on MNIST,
    /// 500 hidden units trained by PCD-5 for 64 epochs with a learning rate that falls from 0.05 to
    /// 0.0005 reach a test log-likelihood of −88.0 nats (mean of three seeds), with f32 weights
    /// −87.6; if it falls to 0.005, both are the same within seeds. In an emulation before this was
    /// built, a linear classifier on features of CD-1 with momentum 0.9 had 5.1 ± 0.3 % errors,
    /// with f32 weights 5.0 ± 0.1 %, and 83 % with rounding to nearest in place of stochastic
    /// rounding.
    Bf16Stochastic,
}

impl WeightStorage {
    fn is_f32(&self) -> bool {
        *self == Self::F32
    }
}

/// How an RBM is trained: contrastive divergence and its surroundings.
///
/// The defaults are those of Hinton, "A practical guide to training restricted Boltzmann machines",
/// 2010, for binary units. Gaussian units want a rate 10 to 100 times lower (section 13.2).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RbmTrainConfig {
    /// Rows of a minibatch, at least 1; also the number of persistent chains. Default 100 (section
    /// 4).
    pub batch: usize,
    /// Step along the mean gradient of a minibatch, at least 0. Default 0.1.
    pub learning_rate: Schedule,
    /// Share of the last step that is kept, in [0, 1). Default 0.5, from epoch 5 on 0.9 (section
    /// 9).
    pub momentum: Schedule,
    /// Gibbs steps before the negative statistics are taken, at least 1. Default 1.
    pub k: usize,
    /// Whether the negative phase goes on from the last minibatch's states instead of the data
    /// (PCD, Tieleman 2008).
    pub persistent: bool,
    /// Whether the visible units of the last Gibbs step are drawn (`true`) or their means are used.
    /// Default `false`: less noise (section 3.2). With `persistent` they are always drawn, and so
    /// are those of all steps before the last.
    pub sample_visible: bool,
    /// L1 decay of the weights, at least 0.
    pub l1: f64,
    /// L2 decay of the weights, at least 0. Default 2e-4 (section 10).
    pub l2: f64,
    /// Largest Euclidean norm of a hidden unit's weights; none by default.
    pub max_norm: Option<f64>,
    /// A wish for the mean activation of the hidden units; none by default.
    pub sparsity: Option<SparsityConfig>,
    /// Whether rows are probabilities and every minibatch draws its binary rows afresh, so that the
    /// RBM learns the distribution of binary rows, to which a likelihood refers. Default `false`:
    /// grey levels stand for states (section 3.1).
    pub binarize: bool,
    /// Whether Bernoulli visible units take rows beyond 0 and 1, which are neither states nor
    /// probabilities, as other libraries do. Default `false`: such rows are refused.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub any_range: bool,
    /// Of the matrix products.
    #[serde(with = "precision_name")]
    pub precision: Precision,
    /// What the weights are while they train. Default f32.
    #[serde(skip_serializing_if = "WeightStorage::is_f32")]
    pub weights: WeightStorage,
    /// What ranks of a [group](crate::Trainer::in_group) divide. Default units.
    #[serde(skip_serializing_if = "Division::is_units")]
    pub division: Division,
}

impl Default for RbmTrainConfig {
    fn default() -> Self {
        Self {
            batch: 100,
            learning_rate: Schedule::constant(0.1),
            momentum: Schedule::steps([(0, 0.5), (5, 0.9)]),
            k: 1,
            persistent: false,
            sample_visible: false,
            l1: 0.,
            l2: 2e-4,
            max_norm: None,
            sparsity: None,
            binarize: false,
            any_range: false,
            precision: Precision::F32,
            weights: WeightStorage::F32,
            division: Division::Units,
        }
    }
}

impl RbmTrainConfig {
    /// Minibatches and epochs of a layer; [`for_rows`](Plan::for_rows) fits them to few rows.
    pub const PLAN: Plan = Plan { batch: 100, epochs: 60, least_steps: 2400 };

    /// # Errors
    /// When a field is out of its range; the message names it.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "RbmTrainConfig";
        at_least_one(OP, "batch", self.batch)?;
        at_least_one(OP, "k", self.k)?;
        self.learning_rate.validate(OP, "learning_rate", "at least 0", |x| x >= 0.)?;
        self.momentum.validate(OP, "momentum", "in [0, 1)", |x| (0. ..1.).contains(&x))?;
        range(OP, "l1", self.l1, "at least 0", |x| x >= 0.)?;
        range(OP, "l2", self.l2, "at least 0", |x| x >= 0.)?;
        if let Some(max_norm) = self.max_norm {
            range(OP, "max_norm", max_norm, "above 0", |x| x > 0.)?;
        }
        if let Some(SparsityConfig { target, cost, decay }) = self.sparsity {
            range(OP, "sparsity.target", target, "in (0, 1)", |x| x > 0. && x < 1.)?;
            range(OP, "sparsity.cost", cost, "above 0", |x| x > 0.)?;
            range(OP, "sparsity.decay", decay, "in [0, 1)", |x| (0. ..1.).contains(&x))?;
        }
        if self.weights == WeightStorage::Bf16Stochastic {
            if self.precision != Precision::Bf16 {
                let name = self.precision.name();
                candle::bail!("{OP}: precision must be bf16 for bf16-stochastic weights, got {name}")
            }
            if let Some(max_norm) = self.max_norm {
                candle::bail!("{OP}: max_norm must be none for bf16-stochastic weights, got {max_norm}")
            }
        }
        Ok(())
    }

    /// [`validate`](Self::validate), and whether `rbm` can be trained so.
    ///
    /// # Errors
    /// When a field is out of its range, or weights are to be stored as those of such an RBM cannot
    /// be.
    pub(crate) fn validate_for(&self, rbm: &RbmConfig) -> Result<()> {
        self.validate()?;
        let dense = rbm.connections.is_dense();
        if self.weights == WeightStorage::Bf16Stochastic && !dense {
            candle::bail!(
                "RbmTrainConfig: weights must be f32 unless a layer is dense, got bf16-stochastic for patches or a convolution of {} visible and {} hidden units",
                rbm.n_visible,
                rbm.n_hidden
            )
        }
        Ok(())
    }
}

/// A precision as its name.
pub(crate) mod precision_name {
    use chandlery_ops::Precision;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(precision: &Precision, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(precision.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Precision, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
