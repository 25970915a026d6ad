//! Points on a line as a picture in the plane.
use super::Classes;

/// Fewest and most bins of a line.
const BINS: std::ops::RangeInclusive<usize> = 16..=400;
/// The height of the tallest stack, in lengths of the line.
const HEIGHT: f64 = 0.5;

/// A stacked histogram of points on a line: the places of the points in the plane, `[n, 2]`.
///
/// Each point stays at its coordinate. Its height is its place among the points of its bin, which
/// are stacked by class in the order of the classes, and in a class by their numbers. The line is
/// cut into about `√n` bins of one width, 16 to 400. The tallest stack is half as high as the line
/// is long. A coordinate that is not finite stays so.
///
/// ```
/// use chandlery::pictures::scatter::{Classes, stacked};
/// let classes = Classes::new(4, Some(&[1, 0, 0, 0]), None);
/// let places = stacked(&[0., 0., 0., 16.], &classes);
/// let heights: Vec<f32> = places.chunks(2).map(|place| place[1]).collect();
/// // The second and the third point are of the class below.
/// assert!(heights[1] < heights[2] && heights[2] < heights[0] && heights[3] == heights[1]);
/// assert_eq!(places[6], 16.);
/// ```
///
/// Cost: `O(n)`.
pub fn stacked(line: &[f32], classes: &Classes) -> Vec<f32> {
    let finite = || line.iter().filter(|x| x.is_finite()).map(|&x| f64::from(x));
    let (low, high) =
        finite().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
    let length = if high > low { high - low } else { 1. };
    let n_bins = line.len().isqrt().clamp(*BINS.start(), *BINS.end());
    let bin = |x: f32| (((f64::from(x) - low) / length * n_bins as f64) as usize).min(n_bins - 1);
    let class = |i: usize| classes.of.get(i).map_or(0, |&class| class as usize);
    // The points of each bin and class, then how many lie below the first of them.
    let n_classes = classes.names.len().max(1);
    let mut below = vec![0u32; n_bins * n_classes];
    for (i, &x) in line.iter().enumerate().filter(|(_, x)| x.is_finite()) {
        below[bin(x) * n_classes + class(i).min(n_classes - 1)] += 1;
    }
    let mut tallest = 1;
    for bin in below.chunks_mut(n_classes) {
        let mut height = 0;
        for count in bin {
            height += std::mem::replace(count, height);
        }
        tallest = tallest.max(height);
    }
    let unit = HEIGHT * length / f64::from(tallest);
    let place = |(i, &x): (usize, &f32)| {
        if !x.is_finite() {
            return [x, x];
        }
        let next = &mut below[bin(x) * n_classes + class(i).min(n_classes - 1)];
        *next += 1;
        [x, ((f64::from(*next) - 0.5) * unit) as f32]
    };
    line.iter().enumerate().flat_map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_point_has_a_place_of_its_own_above_the_classes_below() {
        let n = 3000usize;
        let line: Vec<f32> = (0..n).map(|i| ((i * 7919 % n) as f32 / 100.).sin() * 10.).collect();
        let labels: Vec<u32> = (0..n).map(|i| (i * 31 % 7) as u32).collect();
        let classes = Classes::new(n, Some(&labels), None);
        let places = stacked(&line, &classes);
        let n_bins = 54;
        let bin = |x: f32| (((x + 10.) / 20. * n_bins as f32) as usize).min(n_bins - 1);
        let mut bins: Vec<Vec<(f32, u32)>> = vec![vec![]; n_bins];
        for (i, place) in places.chunks(2).enumerate() {
            assert_eq!(place[0], line[i]);
            bins[bin(place[0])].push((place[1], labels[i]));
        }
        let highest = places.chunks(2).map(|place| place[1]).fold(0., f32::max);
        assert!((9.5..=10.).contains(&highest), "{highest}");
        for points in &mut bins {
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(
                points.windows(2).filter(|two| two[0].0 == two[1].0).count() <= 1,
                "two points at one place"
            );
            // But for the points on the edge of a bin, which rounding may put into the next one.
            let falls = points.windows(2).filter(|two| two[0].1 > two[1].1).count();
            assert!(falls <= 2, "{points:?}");
        }
    }

    #[test]
    fn what_is_equal_infinite_or_missing_has_a_place() {
        let one = |n| Classes::new(n, None, None);
        assert_eq!(stacked(&[], &one(0)), [0f32; 0]);
        assert_eq!(stacked(&[5., 5.], &one(2)), [5., 0.125, 5., 0.375]);
        let places = stacked(&[f32::NAN, 1., f32::INFINITY, 3.], &one(4));
        assert!(places[0].is_nan() && places[1].is_nan() && places[5].is_infinite());
        assert_eq!(places[2..4], [1., 0.5]);
        let far = stacked(&[-3e38, 3e38], &one(2));
        assert!(far.iter().all(|x| x.is_finite()), "{far:?}");
    }
}
