//! Where the filters of a convolutional RBM lie, and how its maps are pooled.
use candle::{Result, Tensor};
use chandlery_ops::images::{ConvolutionShape, Padding, PoolShape};
use serde::{Deserialize, Serialize};

/// Square filters at every place of a grid of values, and blocks of their maps that are pooled.
///
/// A row of the grid is `[planes, height, width, depth]`. An image has a plane for each channel and
/// depth 1; the pooled units of a layer of maps are one plane whose depth is the number of maps. A
/// filter has `planes · depth` channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ConvGrid {
    /// Planes, at least 1: the channels of an image.
    pub planes: usize,
    /// Lines of a plane.
    pub height: usize,
    /// Places in a line.
    pub width: usize,
    /// Values at a place, at least 1: the maps of the layer below.
    pub depth: usize,
    /// Height and width of a filter, in places. With [`Padding::Valid`] at most those of the grid.
    pub size: usize,
    /// Filters, each of which gives one map, at least 1.
    pub n_filters: usize,
    /// What happens at the border. Default: filters stay within the grid.
    #[serde(default)]
    pub padding: Padding,
    /// Distance of neighbouring places of a filter, at least 1. Above 1 filters stay within the
    /// grid, the last ones end with it, and the RBM is for a CPU.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub stride: usize,
    /// Side of the blocks of a map that are pooled, in places: 1 for no pooling. Blocks tile the
    /// maps.
    #[serde(default = "one")]
    pub pool: usize,
}

fn one() -> usize {
    1
}

fn is_one(n: &usize) -> bool {
    *n == 1
}

impl ConvGrid {
    /// `n_filters` filters of `size` by `size` pixels on images, whose channels are planes one
    /// after the other; valid, at every place, without pooling.
    pub fn of_image(image: impl Into<[usize; 3]>, size: usize, n_filters: usize) -> Self {
        let [height, width, planes] = image.into();
        Self { planes, height, width, depth: 1, size, n_filters, padding: Padding::Valid, stride: 1, pool: 1 }
    }

    /// # Errors
    /// When a size is 0, filters are larger than the grid, the last filters do not end with it, or
    /// blocks do not tile the maps; then the message names the nearest sizes that fit.
    pub fn validate(&self, op: &str) -> Result<()> {
        let named = |e: candle::Error| candle::Error::Msg(format!("{op}: {e}"));
        for (name, size) in [("planes", self.planes), ("depth", self.depth)] {
            if size == 0 {
                candle::bail!("{op}: {name} must be at least 1, got 0")
            }
        }
        self.shape().validate().map_err(named)?;
        self.check_stride(op)?;
        let Err(err) = self.pools().validate(op) else { return Ok(()) };
        let (pool, maps) = (self.pool, [self.maps_height(), self.maps_width()]);
        if pool == 0 || maps.iter().any(|&maps| pool > maps) {
            return Err(err);
        }
        let sides = [("height", self.height), ("width", self.width)].into_iter().zip(maps);
        let fits: Vec<String> = sides
            .filter(|(_, maps)| !maps.is_multiple_of(pool))
            .map(|((name, side), maps)| {
                let below = side - maps % pool * self.stride;
                format!("{name} {below} or {} instead of {side}", below + pool * self.stride)
            })
            .collect();
        candle::bail!(
            "{op}: blocks of {pool}x{pool} must tile the maps of {}x{} that filters of {s}x{s} give; sizes of the grid that fit: {}",
            maps[0],
            maps[1],
            fits.join(", "),
            s = self.size
        )
    }

    /// Refuses filters that leave lines below or on the right to no filter.
    fn check_stride(&self, op: &str) -> Result<()> {
        for (name, side) in [("height", self.height), ("width", self.width)] {
            let over = side.saturating_sub(self.size) % self.stride;
            if over > 0 && self.padding == Padding::Valid {
                candle::bail!(
                    "{op}: filters of {s}x{s} every {stride} must end with the grid: its {name} must be {} or {}, got {side}",
                    side - over,
                    side - over + self.stride,
                    s = self.size,
                    stride = self.stride
                )
            }
        }
        Ok(())
    }

    /// Channels of a filter.
    pub fn channels(&self) -> usize {
        self.planes * self.depth
    }

    /// Lines of a map.
    pub fn maps_height(&self) -> usize {
        self.shape().out_height()
    }

    /// Places in a line of a map.
    pub fn maps_width(&self) -> usize {
        self.shape().out_width()
    }

    /// Values in a row of the grid.
    pub fn n_values(&self) -> usize {
        self.shape().n_visible()
    }

    /// Places of the grid.
    pub(crate) fn n_places(&self) -> usize {
        self.height * self.width
    }

    /// Places of a map.
    pub fn n_positions(&self) -> usize {
        self.shape().n_positions()
    }

    /// Units of all maps.
    pub fn n_units(&self) -> usize {
        self.shape().n_hidden()
    }

    /// Pooled units of all maps: what the next layer reads.
    pub fn n_pooled(&self) -> usize {
        self.pools().n_pooled()
    }

    /// The sizes of its convolutions.
    pub fn shape(&self) -> ConvolutionShape {
        ConvolutionShape {
            height: self.height,
            width: self.width,
            channels: self.channels(),
            n_filters: self.n_filters,
            size: self.size,
            padding: self.padding,
            stride: self.stride,
        }
    }

    /// The blocks of its maps.
    pub fn pools(&self) -> PoolShape {
        PoolShape {
            height: self.maps_height(),
            width: self.maps_width(),
            n_maps: self.n_filters,
            pool: self.pool,
        }
    }

    /// Rows `[batch, planes · height · width · depth]` with the channels of a place next to each
    /// other, as convolutions read them.
    pub(crate) fn channels_last(&self, rows: &Tensor) -> Result<Tensor> {
        match self.planes {
            1 => Ok(rows.clone()),
            _ => self.turned(rows, self.planes, self.n_places()),
        }
    }

    /// The opposite of [`channels_last`](Self::channels_last).
    pub(crate) fn planes_first(&self, rows: &Tensor) -> Result<Tensor> {
        match self.planes {
            1 => Ok(rows.clone()),
            _ => self.turned(rows, self.n_places(), self.planes),
        }
    }

    fn turned(&self, rows: &Tensor, outer: usize, inner: usize) -> Result<Tensor> {
        let (batch, n) = rows.dims2()?;
        rows.reshape((batch, outer, inner, self.depth))?.transpose(1, 2)?.contiguous()?.reshape((batch, n))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use candle::Device::Cpu;

    fn message(grid: ConvGrid) -> String {
        grid.validate("Op").unwrap_err().to_string().lines().next().unwrap().to_owned()
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused_with_those_that_do() {
        let grid = ConvGrid { pool: 2, ..ConvGrid::of_image([28, 27, 1], 12, 24) };
        assert_eq!(
            message(grid),
            "Op: blocks of 2x2 must tile the maps of 17x16 that filters of 12x12 give; sizes of the grid that fit: \
             height 27 or 29 instead of 28"
        );
        assert!(message(ConvGrid { pool: 0, ..grid }).contains("pool must be at least 1, got 0"));
        assert!(
            message(ConvGrid { pool: 99, ..grid })
                .contains("pool must be at most the height of the maps, 17, got 99")
        );
        assert!(message(ConvGrid { size: 30, ..grid }).contains("size must be at most 27"));
        assert!(message(ConvGrid { n_filters: 0, ..grid }).contains("n_filters must be at least 1, got 0"));
        assert!(message(ConvGrid { planes: 0, ..grid }).contains("planes must be at least 1, got 0"));
        ConvGrid { height: 29, ..grid }.validate("Op").unwrap();
        let every_two = ConvGrid { stride: 2, width: 28, pool: 1, ..grid };
        every_two.validate("Op").unwrap();
        assert_eq!((every_two.maps_height(), every_two.n_positions()), (9, 81));
        assert_eq!(
            message(ConvGrid { height: 29, ..every_two }),
            "Op: filters of 12x12 every 2 must end with the grid: its height must be 28 or 30, got 29"
        );
        assert_eq!(
            message(ConvGrid { pool: 2, ..every_two }),
            "Op: blocks of 2x2 must tile the maps of 9x9 that filters of 12x12 give; sizes of the grid that fit: \
             height 26 or 30 instead of 28, width 26 or 30 instead of 28"
        );
        assert!(message(ConvGrid { stride: 0, ..every_two }).contains("stride must be at least 1, got 0"));
        assert!(message(ConvGrid { padding: Padding::Same, ..every_two }).contains("stride must be 1"));
        ConvGrid { padding: Padding::Same, width: 28, ..grid }.validate("Op").unwrap();
    }

    #[test]
    fn channels_of_a_pixel_are_brought_together_and_back() {
        let grid = ConvGrid::of_image([1, 2, 3], 1, 1);
        let rows = Tensor::new(&[[1f32, 2., 10., 20., 100., 200.]], &Cpu).unwrap();
        let last = grid.channels_last(&rows).unwrap();
        assert_eq!(last.to_vec2::<f32>().unwrap(), [[1., 10., 100., 2., 20., 200.]]);
        assert_eq!(
            grid.planes_first(&last).unwrap().to_vec2::<f32>().unwrap(),
            rows.to_vec2::<f32>().unwrap()
        );
    }
}
