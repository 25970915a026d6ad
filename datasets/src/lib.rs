//! Data for unsupervised learning on [candle]: where rows come from, and how they reach the device.
//!
//! One call opens any data set, one type feeds it:
//!
//! ```
//! use candle::Device;
//! use chandlery_datasets::{Feed, FeedConfig, Split};
//! # fn main() -> chandlery_datasets::Result<()> {
//! // Five samples of two bytes, with labels; `open("mnist-sample", &DataOptions::default())` gives real ones.
//! let split = Split::from_u8(vec![0, 1, 10, 11, 20, 21, 30, 31, 40, 41], 2, Some(vec![0, 1, 2, 3, 4]))?;
//! let mut feed = Feed::new(&split, &Device::Cpu, FeedConfig::new(2, 7))?;
//! feed.start_epoch(0, 0)?;
//! let mut seen = 0;
//! while let Some(minibatch) = feed.next()? {
//!     // Labels ride along: here, row `i` starts with `10 i`.
//!     let rows = minibatch.rows.to_vec2::<u8>()?;
//!     let labels = minibatch.labels.map(|l| l.to_vec1::<u32>()).transpose()?.unwrap_or_default();
//!     for (row, label) in rows.iter().zip(labels) {
//!         assert_eq!(u32::from(row[0]), 10 * label);
//!     }
//!     seen += rows.len();
//! }
//! // Two whole minibatches, and the fifth row in one of its own.
//! assert_eq!((seen, feed.n_batches()), (5, 3));
//! # Ok(()) }
//! ```
//!
//! Data in memory are tensors in and out: [`Split::from_tensors`], [`Split::from_batches`],
//! [`Split::to_tensor`], minibatches of an iterator by [`Split::batches`] and [`Feed::epoch`].
//! Splits are made of others by [`Split::map`], [`Split::filter`], [`Split::concat`],
//! [`Split::select`] and [`Split::split`].
//!
//! | module         | what                                                            |
//! |----------------|-----------------------------------------------------------------|
//! | [`mod@open`]   | the one `--data` option: names, hub ids, folders and files      |
//! | [`options`]    | [`DataOptions`]: how a data set is read                         |
//! | [`dataset`]    | [`Dataset`], [`Split`], [`ImageShape`]                          |
//! | [`embedded`]   | data sets that come with the crate                              |
//! | [`patches`]    | random patches of images                                        |
//! | [`preparation`] | what is done to raw rows before a model reads them: scale, means, columns, PCA, whitening |
//! | [`source`]     | the trait [`Source`], rows in memory, subsets                   |
//! | [`sparse`]     | sparse rows: of scipy, Matrix Market, 10x Genomics, AnnData     |
//! | [`feed`]       | [`Feed`]: a seeded order, chunks to the device, minibatch views |
//! | [`guard`]      | panics of decoders, which become errors                         |
//! | [`whole`]      | files that appear whole or not at all                           |
//!
//! | feature           | default | what it reads                                                       |
//! |-------------------|---------|---------------------------------------------------------------------|
//! | `hub`             | yes     | data sets of the Hugging Face hub (with `parquet`)                  |
//! | `image`           | yes     | images: files, folders, in tables, and the built-in photographs     |
//! | `parquet`         | yes     | parquet files                                                       |
//! | `samples`         | yes     | the built-in digits and (with `image`) photographs, 1.6 MB          |
//! | `hdf5`            | no      | `.h5ad` of AnnData and `.h5` of 10x Genomics                        |
//! | `candle-datasets` | no      | what candle-datasets has loaded, and back: `Dataset::from_candle`    |
//! | `cuda`            | no      | rows on GPUs                                                        |
//!
//! Without the first three what is left costs little more to build than candle itself: rows in
//! memory, `.npy`, `.safetensors`, idx files and the built-in digits. [`guide`] says what each file
//! may look like, and how a format is added.
//!
//! Bytes stay bytes up to the device and stand for themselves over 255; kernels multiply by
//! [`Feed::scale`].
mod adapt;
mod ahead;
mod batches;
mod beside;
mod classes;
mod count;
pub mod dataset;
mod decode;
mod delimited;
#[cfg_attr(not(feature = "samples"), path = "no_samples.rs")]
pub mod embedded;
mod error;
pub mod feed;
mod fingerprint;
mod folder;
mod form;
mod formats;
mod gather;
pub mod guard;
/// What `--data` and [`open()`] accept, and how a format is added.
#[doc = include_str!("../README.md")]
pub mod guide {}
#[cfg(feature = "hub")]
pub mod hub;
mod idx;
mod labels;
mod listing;
mod mapped;
mod memory;
mod metadata;
mod named;
mod notes;
mod npy;
mod npz;
mod on_device;
pub mod open;
pub mod options;
mod order;
pub mod patches;
#[cfg_attr(not(feature = "image"), path = "no_pixels.rs")]
mod pixels;
mod planes;
pub mod preparation;
mod rounded;
mod shards;
mod side;
mod sink;
pub mod source;
pub mod sparse;
mod table;
mod tensors;
#[cfg(feature = "image")]
mod tiff;
pub mod whole;

pub use batches::Minibatches;
pub use count::count;
pub use dataset::{Dataset, ImageShape, Split};
pub use error::{Error, FORMS, Result};
pub use feed::{Feed, FeedConfig, Minibatch};
pub use fingerprint::Fingerprint;
pub use guard::panics_are_caught;
pub use labels::{KnownClasses, MAX_CLASSES};
pub use mapped::MappedRows;
pub use npz::read_npz;
pub use open::{is_name, open};
pub use options::{Colour, DataOptions};
#[cfg(feature = "image")]
pub use pixels::decode_image;
pub use preparation::Preparation;
pub use rounded::Centre;
pub use source::{MemoryRows, Rounding, RowType, Source, Subset};
pub use sparse::SparseRows;
pub use sparse::block::SparseBlock;
