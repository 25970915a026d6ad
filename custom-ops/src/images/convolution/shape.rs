//! The sizes of a convolution.
use candle::Result;
use serde::{Deserialize, Serialize};

/// What happens at the border of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Padding {
    /// Filters stay within the image: maps have `size − 1` lines fewer in each direction.
    #[default]
    Valid,
    /// Zeros around the image give maps of its height and width: `⌊(size − 1)/2⌋` lines of zeros
    /// above and on the left, and the other `⌈(size − 1)/2⌉` below and on the right. For an even
    /// size the extra line is thus below and on the right, as for `same` of PyTorch and TensorFlow.
    Same,
}

/// The sizes of a convolution with square filters, each at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConvolutionShape {
    /// Rows of an image, in pixels.
    pub height: usize,
    /// Columns of an image, in pixels.
    pub width: usize,
    /// Numbers of a pixel.
    pub channels: usize,
    /// Filters, each of which gives one map.
    pub n_filters: usize,
    /// Height and width of a filter, in pixels. With [`Padding::Valid`] at most those of the image.
    pub size: usize,
    /// What happens at the border.
    pub padding: Padding,
    /// Distance of neighbouring positions of a filter, in pixels: 1 with [`Padding::Same`]. Lines
    /// below the last position, fewer than this, belong to no map. Above 1 on a CPU only.
    pub stride: usize,
}

impl ConvolutionShape {
    /// The shape with stride 1, when it is one.
    ///
    /// # Errors
    /// As [`validate`](Self::validate).
    pub fn new(
        (height, width, channels): (usize, usize, usize),
        n_filters: usize,
        size: usize,
        padding: Padding,
    ) -> Result<Self> {
        let shape = Self { height, width, channels, n_filters, size, padding, stride: 1 };
        shape.validate()?;
        Ok(shape)
    }

    /// Checks that all sizes are at least 1, that filters without padding fit into the image, that
    /// those with padding lie at every pixel, and that the entries of an image, of its maps and of
    /// the weights can be counted in 31 bits.
    ///
    /// # Errors
    /// When one of these does not hold.
    pub fn validate(&self) -> Result<()> {
        let Self { height, width, channels, n_filters, size, padding, stride } = *self;
        let sizes = [
            ("height", height),
            ("width", width),
            ("channels", channels),
            ("n_filters", n_filters),
            ("size", size),
            ("stride", stride),
        ];
        if let Some((name, _)) = sizes.iter().find(|(_, n)| *n == 0) {
            candle::bail!("convolution: {name} must be at least 1, got 0")
        }
        if padding == Padding::Valid && (size > height || size > width) {
            candle::bail!(
                "convolution: size must be at most {}, the lesser side of an image without padding, got {size}",
                height.min(width)
            )
        }
        if padding == Padding::Same && stride > 1 {
            candle::bail!("convolution: stride must be 1 for maps of the size of the image, got {stride}")
        }
        let product = |factors: [usize; 4]| factors.iter().try_fold(1usize, |n, &f| n.checked_mul(f));
        let (rows, columns) = (self.out_height(), self.out_width());
        for (what, entries) in [
            ("an image", product([height, width, channels, 1])),
            ("the maps of an image", product([rows, columns, n_filters, 1])),
            ("the weights", product([size, size, channels, n_filters])),
        ] {
            if entries.is_none_or(|entries| i32::try_from(entries).is_err()) {
                candle::bail!("convolution: {what} must have fewer than 2^31 entries, got {self:?}")
            }
        }
        Ok(())
    }

    /// Rows of a map.
    pub fn out_height(&self) -> usize {
        self.out(self.height)
    }

    /// Columns of a map.
    pub fn out_width(&self) -> usize {
        self.out(self.width)
    }

    /// Entries of an image: `height · width · channels`.
    pub fn n_visible(&self) -> usize {
        self.height * self.width * self.channels
    }

    /// Entries of the maps of an image: `out_height · out_width · n_filters`.
    pub fn n_hidden(&self) -> usize {
        self.n_positions() * self.n_filters
    }

    /// Weights of a filter: `size² · channels`.
    pub fn filter_len(&self) -> usize {
        self.size * self.size * self.channels
    }

    /// Positions of a filter: `out_height · out_width`.
    pub fn n_positions(&self) -> usize {
        self.out_height() * self.out_width()
    }

    fn out(&self, side: usize) -> usize {
        match self.padding {
            Padding::Valid => (side + self.stride).saturating_sub(self.size) / self.stride.max(1),
            Padding::Same => side,
        }
    }

    /// Lines of zeros above, and on the left: `pad` of the equations.
    pub(super) fn pad(&self) -> usize {
        match self.padding {
            Padding::Valid => 0,
            Padding::Same => (self.size - 1) / 2,
        }
    }

    /// Weights of one row of a filter.
    pub(super) fn filter_row(&self) -> usize {
        self.size * self.channels
    }

    /// FLOP of any of the three ops for one image.
    pub(super) fn flop(&self) -> usize {
        (2 * self.n_hidden()).saturating_mul(self.filter_len())
    }
}
