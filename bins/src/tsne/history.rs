//! Pictures of the layout on the way, and their animation.
use crate::progress::Progress as Bar;
use crate::run_folder::RunFolder;
use crate::session::Picture;
use crate::stages::{self, Stage};
use anyhow::Result;
use candle::{DType, Device, Tensor};
use chandlery::pictures::scatter::animation::write_gif;
use chandlery::pictures::scatter::discs::{Points, draw};
use chandlery::pictures::scatter::{Classes, stacked};
use chandlery::pictures::write_png;

/// The name of the animation.
const ANIMATION: &str = "history.gif";
/// Width and height of its pictures, in pixels.
const SIDE: u32 = 640;

/// Draws a layout at a check; pictures lie in the run folder, so that a run that is resumed has
/// those from before.
pub struct History {
    folder: RunFolder,
    classes: Classes,
}

impl History {
    /// In this run folder.
    pub fn new(folder: &RunFolder, classes: &Classes) -> Result<Self> {
        Ok(Self { folder: folder.clone(), classes: classes.clone() })
    }

    fn name(iteration: usize) -> String {
        format!("history/{iteration:06}.png")
    }

    /// Draws the layout after so many iterations.
    pub fn draw(&self, iteration: usize, layout: &Tensor, words: &str) -> Result<()> {
        let _stage = stages::enter(Stage::Pictures);
        let (positions, n_dims) = drawn_places(layout, &self.classes)?;
        let points = Points { positions: &positions, n_dims, classes: &self.classes };
        Ok(write_png(&draw(&points, words, SIDE)?, &self.folder.file(&Self::name(iteration))?)?)
    }

    /// Puts the pictures after these iterations together.
    pub fn animate(&self, iterations: &[usize]) -> Result<Picture> {
        let bar = Bar::iterations(2 * iterations.len() as u64, 0);
        bar.label("drawing the animation".to_owned());
        write_gif(&self.folder.file(ANIMATION)?, iterations.len(), |i| {
            bar.advance(1);
            let file = self.folder.join(&Self::name(iterations[i]));
            let unread = |err| candle::Error::Msg(format!("{}: cannot be read: {err}", file.display()));
            Ok(image::open(&file).map_err(unread)?.into_rgb8())
        })?;
        let last = iterations.last().copied().unwrap_or(0);
        Ok(Picture {
            file: ANIMATION.to_owned(),
            caption: format!("the layout from the start to iteration {last}, each picture to its own scale"),
        })
    }
}

/// Where the points of a layout are drawn, and in how many dimensions: those on a line as a stacked
/// histogram in the plane.
pub fn drawn_places(layout: &Tensor, classes: &Classes) -> Result<(Vec<f32>, usize)> {
    let places = layout.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
    Ok(match layout.dim(1)? {
        1 => (stacked(&places, classes), 2),
        n_dims => (places, n_dims),
    })
}
