//! Pictures of models and of what they make: tiles of filters, samples and reconstructions,
//! learning curves, layouts of points as a scatter, an animation or an interactive page, image
//! files as tensors. With the feature `pictures`.
//!
//! | module | what |
//! |---|---|
//! | [`tiles`] | rows of a tensor as tiles of a picture |
//! | [`curves`] | curves and histograms with axes, and a legend or labels, as SVG or as pixels |
//! | [`scatter`] | points coloured by class, as SVG, as pixels, as an animation or as images of their rows |
//! | [`page`] | points, or latents, as an HTML page that loads nothing |
//! | [`planes`] | image files as planes of grey levels |
//! | [`raster`] | letters that need no font of the machine |
//!
//! Nothing is shown or printed: functions return pictures and texts, or write the file that they
//! are given.
//!
//! ```
//! use candle::{Device, Tensor};
//! use chandlery::ImageShape;
//! use chandlery::pictures::{Shades, mosaic};
//!
//! # fn main() -> candle::Result<()> {
//! // Six filters of 4x4 weights in three columns: tiles and gaps of one pixel.
//! let filters = Tensor::zeros((6, 16), candle::DType::F32, &Device::Cpu)?;
//! let picture = mosaic(&filters, ImageShape::grey(4, 4), 3, Shades::Symmetric, 1)?;
//! assert_eq!(picture.dimensions(), (3 * 5 + 1, 2 * 5 + 1));
//! # Ok(()) }
//! ```
pub mod curves;
mod histogram;
pub mod page;
pub mod planes;
pub mod raster;
pub mod scatter;
pub mod tiles;

pub use image::RgbImage;
pub use tiles::{Shades, can_draw, lines_of, mosaic, originals_over_reconstructions, tile_zoom, write_png};
