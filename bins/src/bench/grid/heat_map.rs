//! The ratios of a grid as coloured cells: a line for each size, a column for each minibatch, a
//! block for each precision.
use super::Row;
use anyhow::{Context, Result};
use chandlery::pictures::RgbImage;
use chandlery::pictures::raster::{Letters, write_text};

/// Width and height of a cell, and the space beside and above the cells.
const CELL: (u32, u32) = (64, 26);
const LEFT: u32 = 170;
const TOP: u32 = 64;
const INK: [u8; 3] = [40, 40, 40];
/// Colours are full from this ratio on, and from its inverse down.
const FULL: f64 = 4.;

/// Red where the peer is faster, green where ours is, white where they are level.
fn colour(ratio: f64) -> [u8; 3] {
    let share = (ratio.ln() / FULL.ln()).clamp(-1., 1.);
    let end: [f64; 3] = if share < 0. { [214., 60., 50.] } else { [50., 160., 80.] };
    end.map(|end| (255. + share.abs() * (end - 255.)).round() as u8)
}

/// Each value once, in the order in which it comes.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.fold(Vec::new(), |mut all, value| {
        if !all.contains(&value) {
            all.push(value);
        }
        all
    })
}

/// Draws the rows that have a ratio.
///
/// # Errors
/// When there are more than a picture has room for.
pub(super) fn draw(what: &str, rows: &[Row]) -> Result<RgbImage> {
    let sizes = distinct(rows.iter().map(|row| row.size.as_str()));
    let mut batches = distinct(rows.iter().map(|row| row.batch));
    batches.sort_unstable();
    let precisions = distinct(rows.iter().map(|row| row.precision));
    let block = TOP + CELL.1 * u32::try_from(sizes.len())?;
    let width = LEFT + CELL.0 * u32::try_from(batches.len())? + CELL.1;
    let height = block.checked_mul(u32::try_from(precisions.len())?).context("too many cells")? + CELL.1;
    let mut picture = RgbImage::from_pixel(width, height, [255; 3].into());
    let text = |picture: &mut RgbImage, x: u32, y: u32, text: &str| {
        write_text(picture, (x as i32, y as i32), text, Letters::Small, INK);
    };
    for (p, &precision) in precisions.iter().enumerate() {
        let top = p as u32 * block;
        text(&mut picture, 8, top + 8, &format!("{what}, {precision}: the peer's time over ours"));
        for (column, batch) in batches.iter().enumerate() {
            text(&mut picture, LEFT + column as u32 * CELL.0 + 8, top + TOP - 22, &batch.to_string());
        }
        for (line, &size) in sizes.iter().enumerate() {
            let y = top + TOP + line as u32 * CELL.1;
            text(&mut picture, 8, y + 5, size);
            for (column, &batch) in batches.iter().enumerate() {
                let of_cell =
                    |row: &&Row| (row.size.as_str(), row.batch, row.precision) == (size, batch, precision);
                let Some(ratio) = rows.iter().find(of_cell).and_then(|row| row.ratio) else { continue };
                let x = LEFT + column as u32 * CELL.0;
                for dy in 0..CELL.1 - 1 {
                    for dx in 0..CELL.0 - 1 {
                        picture.put_pixel(x + dx, y + dy, colour(ratio).into());
                    }
                }
                text(&mut picture, x + 8, y + 5, &format!("{ratio:.2}"));
            }
        }
    }
    Ok(picture)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(size: &str, batch: usize, ratio: Option<f64>) -> Row {
        Row {
            family: "rbm",
            size: size.to_owned(),
            batch,
            precision: "f32",
            us: 1.,
            us_min: 1.,
            us_max: 1.,
            gflops: 1.,
            peer: None,
            peer_us: ratio,
            peer_us_min: ratio,
            peer_us_max: ratio,
            ratio,
            device: String::new(),
        }
    }

    #[test]
    fn cells_are_red_behind_green_ahead_and_white_without_a_ratio() -> Result<()> {
        let rows = [row("8x8", 100, Some(4.)), row("8x8", 1, Some(0.25)), row("9x9", 1, None)];
        let picture = draw("a step", &rows)?;
        // Minibatches are in order, whatever the order of the rows; a corner has no letters.
        let corner = |line, column| picture.get_pixel(LEFT + column * CELL.0, TOP + line * CELL.1).0;
        assert_eq!(corner(0, 0), colour(0.25));
        assert_eq!(corner(0, 1), colour(4.));
        assert_eq!((corner(1, 0), corner(1, 1)), ([255; 3], [255; 3]));
        let [red, green, _] = colour(0.5);
        assert!(red > green && colour(2.)[1] > colour(2.)[0] && colour(1.) == [255; 3]);
        Ok(())
    }
}
