//! Files and pictures of a layout.
use super::args::PicturesArgs;
use super::history::drawn_places;
use super::rows::Rows;
use crate::arrays;
use crate::out_folder::OutFolder;
use crate::run_folder::RunFolder;
use crate::session::Picture;
use anyhow::{Result, bail, ensure};
use candle::Tensor;
use chandlery::pictures::page::sprites::Sprites;
use chandlery::pictures::page::values::Values;
use chandlery::pictures::page::{LeftOut, Page};
use chandlery::pictures::scatter::discs::{Points, draw};
use chandlery::pictures::scatter::{Classes, thumbnails};
use chandlery::pictures::{RgbImage, can_draw, write_png};
use chandlery_datasets::count;
use chandlery_datasets::whole::write_whole;

/// Width and height of the scatter, in pixels.
const SIDE: u32 = 1200;
/// The same of the picture of images.
const THUMBNAILS_SIDE: u32 = 2000;
/// The names of the files.
const SCATTER: &str = "scatter.png";
const THUMBNAILS: &str = "thumbnails.png";
const PAGE: &str = "page.html";
const ARRAYS: [&str; 3] = ["layout.npy", "layout.csv", "layout.safetensors"];

/// Writes the layout, f32 `[n, n_dims]`, with labels where the format has a place for them.
pub fn write_arrays(folder: &RunFolder, layout: &Tensor, labels: Option<&[u32]>) -> Result<()> {
    for name in ARRAYS {
        let mut once = Some(layout.clone());
        arrays::write(&folder.file(name)?, layout.dims2()?, || Ok(once.take()), labels)?;
    }
    Ok(())
}

/// A layout that is drawn.
#[derive(Clone, Copy)]
pub struct Shown<'a> {
    /// What it is of.
    pub name: &'a str,
    /// f32 `[n, n_dims]`.
    pub layout: &'a Tensor,
    /// Colours of its points.
    pub classes: &'a Classes,
    /// Whether points have labels, even if too many for colours.
    pub has_labels: bool,
    /// The rows that it is of, where they are known.
    pub rows: Option<&'a Rows>,
    /// The same on the host, where they are dense.
    pub raw: Option<&'a Tensor>,
}

/// What of a layout is drawn before its figures are known.
pub struct Drawn {
    title: String,
    positions: Vec<f32>,
    n_dims: usize,
    sprites: Option<Sprites>,
    values: Option<Values>,
    notes: Vec<String>,
    thumbnails: Option<Picture>,
}

impl Drawn {
    /// Draws the scatter, the thumbnails where they were asked for, and what the page shows of
    /// rows.
    pub fn new(folder: &OutFolder, shown: Shown<'_>, asked: &PicturesArgs) -> Result<Self> {
        let Shown { name, layout, classes, has_labels, rows, raw } = shown;
        let title = format!("t-SNE of {name}");
        let (positions, n_dims) = drawn_places(layout, classes)?;
        let points = Points { positions: &positions, n_dims, classes };
        let (limit, image) = (asked.page_limit, rows.and_then(|rows| rows.image));
        let scatter =
            || -> Result<()> { Ok(write_png(&draw(&points, &title, SIDE)?, &folder.file(SCATTER)?)?) };
        // Sparse rows are no pictures.
        let sprites = || raw.map(|raw| Sprites::new(raw, image, limit << 20)).transpose();
        let (scatter, sprites) = rayon::join(scatter, sprites);
        let (_, sprites) = both(scatter, sprites.map_err(Into::into))?;
        let mut notes = Vec::new();
        if has_labels && !classes.labelled {
            notes.push("There are too many different labels to colour points by them.".to_owned());
        }
        let sprites = sprites.and_then(|made| {
            let left_out = |why| match why {
                LeftOut::NoPictures => "Rows are no pictures.".to_owned(),
                LeftOut::TooLarge => format!(
                    "The rows' pictures are left out: they take more than {limit} MiB (--page-limit)."
                ),
            };
            made.map_err(|why| notes.push(left_out(why))).ok()
        });
        // A picture says more; of sparse rows the first columns say little.
        let values = match raw.filter(|_| sprites.is_none()).zip(rows) {
            None => None,
            Some((raw, rows)) => {
                let made = Values::new(raw, rows.column_names.as_deref(), &rows.centre, limit << 20)?;
                let note = format!(
                    "The rows' values are left out: a column takes more than {limit} MiB (--page-limit)."
                );
                made.map_err(|_| notes.push(note)).ok()
            }
        };
        let thumbnails = match (asked.thumbnails, raw, image) {
            (Some(pixels), Some(raw), Some(shape)) => {
                let drawn = thumbnails::draw(&points, raw, shape, &title, THUMBNAILS_SIDE, pixels)?;
                Some(written(folder, drawn, raw.dim(0)?)?)
            }
            _ => None,
        };
        Ok(Self { title, positions, n_dims, sprites, values, notes, thumbnails })
    }

    /// Writes the page; `figures` are names and values. Gives the pictures for the model card.
    pub fn finish(
        self,
        folder: &OutFolder,
        classes: &Classes,
        figures: &[(String, String)],
    ) -> Result<Vec<Picture>> {
        let page = Page {
            title: &self.title,
            points: Points { positions: &self.positions, n_dims: self.n_dims, classes },
            figures,
            sprites: self.sprites.as_ref(),
            values: self.values.as_ref(),
            notes: &self.notes,
        };
        write_whole(&folder.file(PAGE)?, |file| page.write(file))?;
        let page = mib(page_bytes(folder)?);
        let by = if classes.labelled { ", coloured by label" } else { "" };
        let caption =
            format!("the layout{by}; `{PAGE}` ({page}) shows it in a browser, with what each point is");
        let scatter = Picture { file: SCATTER.to_owned(), caption };
        Ok(std::iter::once(scatter).chain(self.thumbnails).collect())
    }
}

/// How large the page is.
pub fn page_bytes(folder: &OutFolder) -> Result<u64> {
    Ok(std::fs::metadata(folder.path(PAGE))?.len())
}

/// A size in words.
pub fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Writes the picture of so many of `n` rows at their points.
fn written(folder: &OutFolder, (picture, shown): (RgbImage, usize), n: usize) -> Result<Picture> {
    write_png(&picture, &folder.file(THUMBNAILS)?)?;
    let caption = format!("{} at their points, of {}", count(shown, "row"), count(n, "row"));
    Ok(Picture { file: THUMBNAILS.to_owned(), caption })
}

/// What two made beside each other, or what kept them from it.
pub fn both<A, B>(a: Result<A>, b: Result<B>) -> Result<(A, B)> {
    match (a, b) {
        (Ok(a), Ok(b)) => Ok((a, b)),
        (Err(a), Err(b)) => bail!("{a:#}; {b:#}"),
        (Err(err), _) | (_, Err(err)) => Err(err),
    }
}

/// Refuses rows that are no images, where images of them are asked for.
pub fn check_thumbnails(asked: &PicturesArgs, name: &str, rows: Option<&Rows>) -> Result<()> {
    let is_image = |rows: &Rows| rows.raw().is_some() && rows.image.as_ref().is_some_and(can_draw);
    ensure!(
        asked.thumbnails.is_none() || rows.is_some_and(is_image),
        "--thumbnails: rows of {name} are no images of 1 or 3 channels; leave it out"
    );
    Ok(())
}
