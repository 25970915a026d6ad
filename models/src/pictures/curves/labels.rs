//! Names of curves at the last points of their lines, moved as little as keeps them apart.
use super::{Panel, failed, width_of};
use candle::Result;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// From the last point to its label, in pixels.
const GAP: i32 = 6;

/// How much room labels need to the right of a plot, in pixels: none where there is a legend.
pub(super) fn width(panel: &Panel, letters: u32) -> u32 {
    let names = panel.curves.iter().filter(|_| panel.labelled).map(|curve| width_of(&curve.name, letters));
    names.max().unwrap_or(0)
}

/// Writes the names; `ends` are the last points of the curves, in pixels of the whole drawing.
pub(super) fn draw<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    panel: &Panel,
    ends: &[Option<(i32, i32)>],
    letters: u32,
) -> Result<()> {
    let (left, top) = area.get_pixel_range();
    let mut labels: Vec<_> =
        panel.coloured().zip(ends).filter_map(|(curve, end)| Some((curve, (*end)?))).collect();
    labels.sort_by_key(|(_, end)| *end);
    for column in labels.chunk_by(|(_, a), (_, b)| a.0 == b.0) {
        let heights: Vec<_> = column.iter().map(|(_, end)| f64::from(end.1)).collect();
        for (((curve, colour), (x, _)), y) in column.iter().zip(apart(&heights, f64::from(letters))) {
            let style = TextStyle::from(("sans-serif", letters)).color(colour);
            let style = style.pos(Pos::new(HPos::Left, VPos::Center));
            let at = (x + GAP - left.start, y.round() as i32 - top.start);
            area.draw(&Text::new(curve.name.as_str(), at, style)).map_err(failed)?;
        }
    }
    Ok(())
}

/// The ascending values that are at least `gap` apart and whose squared distance to these ascending
/// ones is least: isotonic regression of `value_i − i·gap`, by pooling neighbours that are out of
/// order.
fn apart(values: &[f64], gap: f64) -> Vec<f64> {
    // Sum and count of each pool.
    let mut pools: Vec<(f64, usize)> = vec![];
    for (i, value) in values.iter().enumerate() {
        let mut pool = (value - i as f64 * gap, 1);
        while let Some(before) = pools.pop_if(|(sum, n)| *sum / *n as f64 > pool.0 / pool.1 as f64) {
            pool = (before.0 + pool.0, before.1 + pool.1);
        }
        pools.push(pool);
    }
    let pooled = pools.into_iter().flat_map(|(sum, n)| std::iter::repeat_n(sum / n as f64, n));
    pooled.enumerate().map(|(i, value)| value + i as f64 * gap).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::tests::panel;
    use super::super::{Curve, draw as draw_panels};
    use super::*;

    #[test]
    fn values_move_as_little_as_keeps_them_apart() {
        assert_eq!(apart(&[], 2.), Vec::<f64>::new());
        assert_eq!(apart(&[1., 3., 9.], 2.), [1., 3., 9.]);
        assert_eq!(apart(&[5., 5.], 2.), [4., 6.]);
        // Of all whole numbers that are far enough apart none is nearer.
        let values = [0., 1., 1., 7., 8.];
        let distance = |to: &[f64]| to.iter().zip(values).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
        let got = apart(&values, 3.);
        assert!(got.windows(2).all(|of| of[1] - of[0] >= 3. - 1e-9), "{got:?}");
        let mut least = f64::INFINITY;
        for i in 0..15usize.pow(5) {
            let at: Vec<_> = (0..5).map(|digit| (i / 15usize.pow(digit) % 15) as f64 - 4.).collect();
            if at.windows(2).all(|of| of[1] - of[0] >= 3.) {
                least = least.min(distance(&at));
            }
        }
        assert!(
            distance(&got) <= least && distance(&got) > least - 1.,
            "{got:?}: {} {least}",
            distance(&got)
        );
    }

    #[test]
    fn labels_stand_at_the_ends_of_lines_in_their_colours_and_there_is_no_legend() {
        let curves = ["first", "second"].map(|name| Curve::new(name, [(0., 1.), (1., 2.)]));
        let of = |panel: Panel| draw_panels(&[panel]).unwrap();
        let (labelled, legend) = (of(panel(curves.to_vec()).labelled()), of(panel(curves.to_vec())));
        let height = |svg: &str| svg.split("height=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
        assert!(height(&labelled) < height(&legend));
        // The tag before a name: where it stands, and its colour.
        let tag = |name: &str| {
            let before = labelled.split(&format!("\n{name}\n")).next().unwrap();
            before[before.rfind("<text").unwrap()..].to_owned()
        };
        let value = |name: &str, key: &str| -> i32 {
            tag(name).split(&format!(" {key}=\"")).nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
        };
        assert_eq!(value("first", "x"), value("second", "x"));
        assert!((value("first", "y") - value("second", "y")).abs() >= 12);
        assert!(tag("first").contains("#0072B2") && tag("second").contains("#D55E00"), "{}", tag("first"));
    }
}
