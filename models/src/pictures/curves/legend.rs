//! Names of curves with their colours, below a panel.
use super::{PANEL, Panel, failed, width_of};
use candle::Result;
use plotters::coord::Shift;
use plotters::prelude::*;

/// Names and colours of a panel's curves, in columns of one width; nothing where lines have labels.
pub(super) struct Legend {
    letters: u32,
    rows: usize,
    /// Width of a column, in pixels.
    column: u32,
}

impl Legend {
    /// Where the first mark stands.
    const LEFT: u32 = 20;
    /// A mark, and the space on both sides of it.
    const MARK: u32 = 40;

    pub fn of(panel: &Panel, letters: u32) -> Self {
        let names = panel.curves.iter().filter(|_| !panel.labelled).map(|curve| &curve.name);
        let longest = names.clone().map(|name| width_of(name, letters)).max().unwrap_or(0);
        let column = Self::MARK + longest;
        let columns = ((PANEL.0 - Self::LEFT) / column).max(1) as usize;
        Self { letters, rows: names.count().div_ceil(columns), column }
    }

    /// From one row to the next, in pixels.
    fn row(&self) -> u32 {
        self.letters + 5
    }

    pub fn height(&self) -> u32 {
        match self.rows {
            0 => 0,
            rows => rows as u32 * self.row() + 8,
        }
    }

    pub fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>, panel: &Panel) -> Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        for (i, (curve, colour)) in panel.coloured().enumerate() {
            let x = (Self::LEFT + (i / self.rows) as u32 * self.column) as i32;
            let y = ((i % self.rows) as u32 * self.row()) as i32;
            let (middle, end) = (y + self.letters as i32 / 2, x + 18);
            let pieces = if curve.dashed { vec![(x, x + 7), (x + 11, end)] } else { vec![(x, end)] };
            for (from, to) in pieces {
                let mark = PathElement::new(vec![(from, middle), (to, middle)], colour.stroke_width(3));
                area.draw(&mark).map_err(failed)?;
            }
            let name = Text::new(curve.name.as_str(), (end + 8, y), ("sans-serif", self.letters));
            area.draw(&name).map_err(failed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::tests::panel;
    use super::super::{COLOURS, Curve, draw_pixels};
    use super::*;

    #[test]
    fn a_legend_stands_below_in_as_many_columns_as_fit() {
        let of = |names: &[&str]| {
            Legend::of(&panel(names.iter().map(|&name| Curve::new(name, [(0., 1.)])).collect()), 15)
        };
        assert_eq!(of(&[]).height(), 0);
        assert_eq!(of(&["a", "b", "c"]).rows, 1);
        let long = "a name of a third of the panel";
        assert_eq!(of(&[long; 4]).rows, 4);
        let half = "a fifth of it";
        assert_eq!((of(&[half; 3]).rows, of(&[half; 4]).rows), (1, 2));
        // The last of two rows lies within the picture.
        let curves = [half; 4].map(|name| Curve::new(name, [(0., 1.), (1., 2.)]));
        let picture = draw_pixels(&[panel(curves.to_vec()), panel(vec![])]).unwrap();
        assert_eq!(picture.dimensions(), (2 * PANEL.0, PANEL.1 + of(&[half; 4]).height()));
        let RGBColor(r, g, b) = COLOURS[3];
        let below = picture.enumerate_pixels().filter(|(_, y, _)| *y > PANEL.1 + 20);
        assert!(below.filter(|(.., pixel)| pixel.0 == [r, g, b]).count() >= 40);
    }
}
