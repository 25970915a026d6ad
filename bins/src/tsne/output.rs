//! Files and pictures of a layout.
use super::args::Settings;
use super::history::values;
use super::rows::Rows;
use crate::arrays;
use crate::run_folder::RunFolder;
use crate::session::Picture;
use crate::stages::{self, Stage};
use anyhow::{Result, ensure};
use candle::Tensor;
use chandlery::pictures::page::sprites::Sprites;
use chandlery::pictures::page::values::Values;
use chandlery::pictures::page::{LeftOut, Page};
use chandlery::pictures::scatter::discs::{Points, draw};
use chandlery::pictures::scatter::{Classes, thumbnails};
use chandlery::pictures::{can_draw, write_png};
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
    let _stage = stages::enter(Stage::Files);
    for name in ARRAYS {
        let mut once = Some(layout.clone());
        arrays::write(&folder.file(name)?, layout.dims2()?, || Ok(once.take()), labels)?;
    }
    Ok(())
}

/// Draws the scatter and writes the page; `figures` are names and values.
pub fn write_pictures(
    folder: &RunFolder,
    rows: &Rows,
    classes: &Classes,
    layout: &Tensor,
    settings: &Settings,
    figures: &[(String, String)],
) -> Result<Picture> {
    let positions = values(layout)?;
    let points = Points { positions: &positions, n_dims: layout.dim(1)?, classes };
    let title = format!("t-SNE of {}", rows.name);
    write_png(&draw(&points, &title, SIDE)?, &folder.file(SCATTER)?)?;
    let mut notes = Vec::new();
    if rows.labels.is_some() && !classes.labelled {
        notes.push("There are too many different labels to colour points by them.".to_owned());
    }
    let sprites = match rows.raw() {
        Some(raw) => {
            match Sprites::new(raw, rows.image, settings.page_limit << 20)? {
                Ok(sprites) => Some(sprites),
                Err(why) => {
                    notes.push(match why {
                    LeftOut::NoPictures => "Rows are no pictures.".to_owned(),
                    LeftOut::TooLarge => {
                        let limit = settings.page_limit;
                        format!("The rows' pictures are left out: they take more than {limit} MiB (--page-limit).")
                    }
                });
                    None
                }
            }
        }
        // Sparse rows are no pictures.
        None => None,
    };
    // A picture says more; of sparse rows the first columns say little.
    let values = match rows.raw().filter(|_| sprites.is_none()) {
        None => None,
        Some(raw) => {
            let names = rows.column_names.as_deref();
            match Values::new(raw, names, &rows.centre, settings.page_limit << 20)? {
                Ok(values) => Some(values),
                Err(_) => {
                    let limit = settings.page_limit;
                    notes.push(format!(
                        "The rows' values are left out: a column takes more than {limit} MiB (--page-limit)."
                    ));
                    None
                }
            }
        }
    };
    let (sprites, values) = (sprites.as_ref(), values.as_ref());
    let page = Page { title: &title, points, figures, sprites, values, notes: &notes };
    write_whole(&folder.file(PAGE)?, |file| page.write(file))?;
    let by = if classes.labelled { ", coloured by label" } else { "" };
    let caption = format!("the layout{by}; `{PAGE}` shows it in a browser, with what each point is");
    Ok(Picture { file: SCATTER.to_owned(), caption })
}

/// Refuses rows that are no images, where images of them are asked for.
pub fn check_thumbnails(settings: &Settings, rows: &Rows) -> Result<()> {
    let are_images = rows.raw().is_some() && rows.image.as_ref().is_some_and(can_draw);
    ensure!(
        settings.thumbnails.is_none() || are_images,
        "--thumbnails: rows of {} are no images of 1 or 3 channels; leave it out",
        rows.name
    );
    Ok(())
}

/// Draws rows at their points, `pixels` large.
pub fn write_thumbnails(
    folder: &RunFolder,
    rows: &Rows,
    classes: &Classes,
    layout: &Tensor,
    pixels: u32,
) -> Result<Option<Picture>> {
    let (Some(raw), Some(shape)) = (rows.raw(), rows.image) else { return Ok(None) };
    let positions = values(layout)?;
    let points = Points { positions: &positions, n_dims: layout.dim(1)?, classes };
    let title = format!("t-SNE of {}", rows.name);
    let (picture, shown) = thumbnails::draw(&points, raw, shape, &title, THUMBNAILS_SIDE, pixels)?;
    write_png(&picture, &folder.file(THUMBNAILS)?)?;
    let caption = format!("{} at their points, of {}", count(shown, "row"), count(rows.n(), "row"));
    Ok(Some(Picture { file: THUMBNAILS.to_owned(), caption }))
}
