//! Very many points as a density picture: what lies in a pixel is counted before it is coloured.
//!
//! ```text
//! a_p = Σ_i  alpha_i(p)                       discs over pixel p, alpha as in `blend`
//! c_p = Σ_i  alpha_i(p) light(class of i) / a_p         mixed as light, not as sRGB
//! t_p = FLOOR a_p                                         a_p ≤ 1
//!       FLOOR + (1 − FLOOR) ln a_p / ln a_high, at most 1  a_p > 1
//! ```
//!
//! `t` grows with `a`. With labels it leads from white to the mixed colour, and from there to a
//! darker one; without, along one scale of colours whose lightness falls evenly. `a_high` is such
//! that few pixels hold more, so that many equal points do not make all others pale.
//!
//! Sums are of whole numbers: the picture is the same whatever the number of threads.
use super::blend::Disc;
use crate::pictures::tiles::rounded;
use image::RgbImage;
use rayon::prelude::*;

/// Points from which on a picture shows densities.
pub(super) const LEAST: usize = 100_000;
/// Of a disc, in pixels, on a picture of 1,200.
pub(super) const RADIUS: f64 = 0.9;

/// `t` of one disc that covers a pixel wholly.
const FLOOR: f64 = 0.3;
/// Of the pixels with more than one disc, those that may be beyond the end of the scale.
const BEYOND: f64 = 0.002;
/// The least end of the scale, in discs: where points are nowhere dense, two are not many.
const LEAST_HIGH: f64 = 8.;
/// `t` of the mixed colour, and what is left of it at the end of the scale.
const FULL: f64 = 0.75;
const DARKEST: f64 = 0.45;

/// Parts of a pixel, a side, to which centres are rounded; units of `alpha`.
const PARTS: usize = 4;
const UNITS: u64 = 64;
/// Brightest light of a channel, in whole numbers.
const LIGHT: f64 = 4095.;

/// What lies over a pixel: units of alpha, and the same times the light of each channel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum {
    alpha: u64,
    light: [u64; 3],
}

/// Draws discs of one radius; without colours of classes, by the scale. A disc counts as
/// `weight` of it says, in [0, 1].
pub(super) fn draw(
    picture: &mut RgbImage,
    radius: f64,
    discs: &[Disc],
    colours: Option<&[[u8; 3]]>,
    weight: impl Fn(&Disc) -> f64 + Sync,
) {
    let width = picture.width() as usize;
    let sums = sums(width, picture.height() as usize, radius, discs, colours, weight);
    let high = high(&sums);
    picture.par_chunks_mut(3 * width).zip(sums.par_chunks(width)).for_each(|(pixels, sums)| {
        for (pixel, sum) in pixels.chunks_exact_mut(3).zip(sums) {
            if sum.alpha > 0 {
                let t = share(sum.alpha as f64 / UNITS as f64, high);
                let colour = match colours {
                    Some(_) => shaded(sum.light.map(|light| light as f64 / sum.alpha as f64 / LIGHT), t),
                    None => scale(t),
                };
                pixel.copy_from_slice(&colour);
            }
        }
    });
}

/// The sums of all pixels, line by line.
fn sums(
    width: usize,
    height: usize,
    radius: f64,
    discs: &[Disc],
    colours: Option<&[[u8; 3]]>,
    weight: impl Fn(&Disc) -> f64 + Sync,
) -> Vec<Sum> {
    let stamps = Stamps::new(radius);
    let lights: Vec<[u64; 3]> = colours
        .unwrap_or_default()
        .iter()
        .map(|rgb| rgb.map(|x| (LIGHT * light(x)).round() as u64))
        .collect();
    // The upper left pixel of each stamp, which stamp, and its weight.
    let placed: Vec<(i32, i32, u32, u32)> = discs
        .par_iter()
        .map(|disc| {
            let [(x, part_x), (y, part_y)] = disc.at.map(Stamps::place);
            let units = (weight(disc) * UNITS as f64).round() as u32;
            (x - stamps.reach, y - stamps.reach, (part_y * PARTS + part_x) as u32, units)
        })
        .collect();
    let mut sums = vec![Sum::default(); width * height];
    // Each thread has lines of its own, and goes through all discs.
    let lines = height.div_ceil(rayon::current_num_threads()).max(1);
    sums.par_chunks_mut((lines * width).max(1)).enumerate().for_each(|(band, sums)| {
        let (top, rows) = ((band * lines) as i32, (sums.len() / width.max(1)) as i32);
        for (disc, &(left, upper, stamp, units)) in discs.iter().zip(&placed) {
            if upper >= top + rows || upper + stamps.side as i32 <= top {
                continue;
            }
            let light = lights.get(disc.class as usize).copied().unwrap_or_default();
            let stamp = &stamps.of[stamp as usize];
            for (dy, line) in stamp.chunks_exact(stamps.side).enumerate() {
                let y = upper + dy as i32 - top;
                if !(0..rows).contains(&y) {
                    continue;
                }
                for (dx, &alpha) in line.iter().enumerate() {
                    let x = left + dx as i32;
                    if alpha == 0 || !(0..width as i32).contains(&x) {
                        continue;
                    }
                    let sum = &mut sums[y as usize * width + x as usize];
                    let alpha = u64::from(alpha * units) / UNITS;
                    sum.alpha += alpha;
                    for (sum, light) in sum.light.iter_mut().zip(light) {
                        *sum += alpha * light;
                    }
                }
            }
        }
    });
    sums
}

/// What discs at all parts of a pixel cover.
struct Stamps {
    /// Pixels from the pixel of the centre to the edge of a stamp, and a side.
    reach: i32,
    side: usize,
    /// Units of alpha, `[side, side]`, of each part.
    of: Vec<Vec<u32>>,
}

impl Stamps {
    fn new(radius: f64) -> Self {
        let reach = (radius + 1.).ceil() as i32;
        let side = (2 * reach + 1) as usize;
        let at = |part: usize| f64::from(reach) + (part as f64 + 0.5) / PARTS as f64;
        let stamp = |part: usize| {
            let (cx, cy) = (at(part % PARTS), at(part / PARTS));
            let alpha = |pixel: usize| {
                let (x, y) = ((pixel % side) as f64 + 0.5, (pixel / side) as f64 + 0.5);
                (UNITS as f64 * (radius + 0.5 - (x - cx).hypot(y - cy)).clamp(0., 1.)).round() as u32
            };
            (0..side * side).map(alpha).collect()
        };
        Self { reach, side, of: (0..PARTS * PARTS).map(stamp).collect() }
    }

    /// The pixel of a coordinate, and the part of it.
    fn place(at: f64) -> (i32, usize) {
        let pixel = at.floor();
        (pixel as i32, (((at - pixel) * PARTS as f64) as usize).min(PARTS - 1))
    }
}

/// The sum at the end of the scale, in discs.
fn high(sums: &[Sum]) -> f64 {
    let mut several: Vec<u64> = sums.iter().map(|sum| sum.alpha).filter(|&alpha| alpha > UNITS).collect();
    if several.is_empty() {
        return LEAST_HIGH;
    }
    let last = several.len() - 1;
    let beyond = (BEYOND * several.len() as f64) as usize;
    let (_, &mut high, _) = several.select_nth_unstable(last - beyond.min(last));
    (high as f64 / UNITS as f64).max(LEAST_HIGH)
}

/// The place on the scale of so many discs.
fn share(discs: f64, high: f64) -> f64 {
    match discs <= 1. {
        true => FLOOR * discs,
        false => (FLOOR + (1. - FLOOR) * discs.ln() / high.ln()).min(1.),
    }
}

/// White at 0, light of these channels at `FULL`, darker beyond.
fn shaded(light: [f64; 3], t: f64) -> [u8; 3] {
    let (toward, left) = match t <= FULL {
        true => (t / FULL, 1.),
        false => (1., 1. - (1. - DARKEST) * (t - FULL) / (1. - FULL)),
    };
    // As sRGB, whose steps look even.
    light.map(|light| {
        let colour = srgb(light);
        rounded(255. * (1. + toward * (colour - 1.)) * left)
    })
}

/// A scale from near white to near black, by way of blue: its OKLab lightness (Ottosson 2020) falls
/// evenly with `t`, 0 to 1.
fn scale(t: f64) -> [u8; 3] {
    let lightness = 1. - 0.8 * t;
    // Green-blue where it is light, violet where it is dark, and more colour between the ends.
    let hue = (190. + 90. * t).to_radians();
    let chroma = 0.13 * (std::f64::consts::PI * t.powf(0.8)).sin().max(0.);
    let (a, b) = (chroma * hue.cos(), chroma * hue.sin());
    let cubed = |x: f64| x * x * x;
    let l = cubed(lightness + 0.396_337_777_4 * a + 0.215_803_757_3 * b);
    let m = cubed(lightness - 0.105_561_345_8 * a - 0.063_854_172_8 * b);
    let s = cubed(lightness - 0.089_484_177_5 * a - 1.291_485_548 * b);
    [
        4.076_741_662_1 * l - 3.307_711_591_3 * m + 0.230_969_929_2 * s,
        -1.268_438_004_6 * l + 2.609_757_401_1 * m - 0.341_319_396_5 * s,
        -0.004_196_086_3 * l - 0.703_418_614_7 * m + 1.707_614_701 * s,
    ]
    .map(|light| rounded(255. * srgb(light)))
}

/// Light of a level of sRGB, and the level of a light, in [0, 1].
fn light(level: u8) -> f64 {
    let level = f64::from(level) / 255.;
    if level <= 0.040_45 { level / 12.92 } else { ((level + 0.055) / 1.055).powf(2.4) }
}

fn srgb(light: f64) -> f64 {
    let light = light.clamp(0., 1.);
    if light <= 0.003_130_8 { 12.92 * light } else { 1.055 * light.powf(1. / 2.4) - 0.055 }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use image::Rgb;

    fn disc(at: [f64; 2], class: u32) -> Disc {
        Disc { index: 0, at, depth: 1., class }
    }

    /// Some inside of a picture of 71x53 pixels, some on its edge, some outside; many fall together.
    fn some(n: u32) -> Vec<Disc> {
        (0..n)
            .map(|i| disc([f64::from(i * 37 % 401) / 4. - 10., f64::from(i * i % 293) / 4. - 10.], i % 3))
            .collect()
    }

    const COLOURS: [[u8; 3]; 3] = [[255, 0, 0], [0, 0, 255], [40, 200, 90]];

    #[test]
    fn a_pixel_sums_what_discs_cover_of_it_whatever_the_number_of_threads() {
        let discs = some(900);
        let weight = |disc: &Disc| if disc.class == 2 { 0.5 } else { 1. };
        for (radius, threads) in [(0.6, 1), (0.9, 2), (2.3, 5)] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let sums = pool.install(|| sums(71, 53, radius, &discs, Some(&COLOURS), weight));
            let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
            assert!(sums == one.install(|| super::sums(71, 53, radius, &discs, Some(&COLOURS), weight)));
            for (pixel, sum) in sums.iter().enumerate() {
                let (x, y) = ((pixel % 71) as f64 + 0.5, (pixel / 71) as f64 + 0.5);
                let away = |disc: &Disc| (disc.at[0] - x).hypot(disc.at[1] - y);
                let alpha = |disc: &Disc| weight(disc) * (radius + 0.5 - away(disc)).clamp(0., 1.);
                let (want, got) = (discs.iter().map(alpha).sum::<f64>(), sum.alpha as f64 / UNITS as f64);
                // A centre moves by half a part at most to each side, and units are cut off.
                let n_near = discs.iter().filter(|disc| away(disc) < radius + 0.7).count();
                let slack = n_near as f64 * (0.5 / PARTS as f64 * 2f64.sqrt() + 1.5 / UNITS as f64);
                assert!((want - got).abs() <= slack + 1e-9, "pixel {pixel}: {got}, not {want} to {slack}");
                let mut near = discs.iter().filter(|disc| away(disc) < radius + 0.7);
                if let Some(first) = near.next().filter(|first| near.all(|disc| disc.class == first.class)) {
                    let light = COLOURS[first.class as usize].map(|level| LIGHT * light(level));
                    for (sum_of, want) in sum.light.iter().zip(light) {
                        let got = *sum_of as f64 / sum.alpha.max(1) as f64;
                        assert!(sum.alpha == 0 || (got - want).abs() <= 0.5, "pixel {pixel}: {got} {want}");
                    }
                }
            }
            assert!(sums.iter().any(|sum| sum.alpha > 2 * UNITS) && sums.iter().any(|sum| sum.alpha == 0));
        }
    }

    #[test]
    fn more_points_are_darker() {
        let places: Vec<f64> = (0..=600).map(|step| share(f64::from(step) / 10., 50.)).collect();
        assert!(places.windows(2).all(|pair| pair[0] < pair[1] || pair[1] == 1.), "{places:?}");
        assert_eq!((places[0], places[10], places[500], places[600]), (0., FLOOR, 1., 1.));
        let brightness = |rgb: [u8; 3]| {
            let [r, g, b] = rgb.map(light);
            0.2126 * r + 0.7152 * g + 0.0722 * b
        };
        // Steps that are larger than what rounding to levels changes.
        for (from, to) in (0..40).map(|step| (f64::from(step) / 40., f64::from(step + 1) / 40.)) {
            let falls = |colour: &dyn Fn(f64) -> [u8; 3]| brightness(colour(from)) > brightness(colour(to));
            assert!(falls(&scale), "the scale at {from}");
            for light in [[0.1, 0.3, 0.9], [1., 0., 0.], [0.9, 0.9, 0.1]] {
                assert!(falls(&|t| shaded(light, t)), "{light:?} at {from}");
            }
        }
        // From white; OKLab's lightness falls by the same amount each time.
        assert_eq!((scale(0.), shaded([0.2, 0.4, 0.6], 0.)), ([255; 3], [255; 3]));
        assert_eq!(shaded([light(78), light(121), light(167)], FULL), [78, 121, 167]);
        let lightness = |t: f64| {
            let [r, g, b] = scale(t).map(light);
            let l = (0.412_221_470_8 * r + 0.536_332_536_3 * g + 0.051_445_992_9 * b).cbrt();
            let m = (0.211_903_498_2 * r + 0.680_699_545_1 * g + 0.107_396_956_6 * b).cbrt();
            let s = (0.088_302_461_9 * r + 0.281_718_837_6 * g + 0.629_978_700_5 * b).cbrt();
            0.210_454_255_3 * l + 0.793_617_785 * m - 0.004_072_046_8 * s
        };
        for step in 0..=20 {
            let t = f64::from(step) / 20.;
            // Levels are rounded.
            assert!((lightness(t) - (1. - 0.8 * t)).abs() < 0.004, "{t}: {}", lightness(t));
        }
    }

    #[test]
    fn colours_are_mixed_by_counts_and_equal_points_do_not_make_others_pale() {
        let at = |x: u32| [f64::from(x) + 0.5; 2];
        let drawn = |discs: &[Disc], colours: Option<&[[u8; 3]]>| {
            let mut picture = RgbImage::from_pixel(256, 256, Rgb([255; 3]));
            draw(&mut picture, 0.9, discs, colours, |_| 1.);
            picture
        };
        let mixed: Vec<Disc> = (0..40).map(|i| disc(at(8), u32::from(i % 4 == 0))).collect();
        let sums = sums(64, 64, 0.9, &mixed, Some(&COLOURS), |_| 1.);
        // Three of four are red, one is blue.
        let [red, green, blue] = sums[8 * 64 + 8].light;
        assert!(red == 3 * blue && blue > 0 && green == 0, "{red} {green} {blue}");
        let Rgb(purple) = *drawn(&mixed, Some(&COLOURS)).get_pixel(8, 8);
        assert!(purple[0] > purple[2] && purple[2] > 40 && purple[1] == 0, "{purple:?}");
        // 16,384 places of four points each; then ten thousand points in one.
        let spread = || {
            (0..65_536).map(|i| disc([f64::from(i / 4 % 128) * 2. + 0.5, f64::from(i / 512) * 2. + 0.5], 0))
        };
        let (alone, beside) = (
            drawn(&spread().collect::<Vec<_>>(), None),
            drawn(&spread().chain((0..10_000).map(|_| disc(at(20), 0))).collect::<Vec<_>>(), None),
        );
        assert_eq!(alone.get_pixel(10, 40), beside.get_pixel(10, 40));
        assert!(beside.get_pixel(20, 20).0[1] < alone.get_pixel(20, 20).0[1]);
    }
}
