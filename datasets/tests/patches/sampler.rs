use super::{message, noise, numbered, three_images, values};
use candle::Device::Cpu;
use chandlery_datasets::patches::{Image, ImageSet, PatchPlace, PatchSampler};
use chandlery_datasets::{Feed, FeedConfig, ImageShape, Result, RowType, Source};
use chandlery_ops::Philox;

fn bytes_set() -> Result<ImageSet> {
    let pixels = |n, seed| noise(n, seed).iter().map(|x| (127. + 127. * x) as u8).collect();
    let images = vec![
        Image::from_u8("a", ImageShape::grey(20, 31), pixels(20 * 31, 1))?,
        Image::from_u8("b", ImageShape::grey(17, 12), pixels(17 * 12, 2))?,
    ];
    ImageSet::new("bytes", images)
}

#[test]
fn patches_lie_inside_images_and_are_where_their_place_says() -> Result<()> {
    for side in [1, 2, 3, 4] {
        let set = three_images();
        let first = [0., 1000., 2000.];
        let sampler = PatchSampler::new(set.clone(), side, 3000, 5)?;
        let drawn = values(&sampler.draw(0..3000, &Cpu)?);
        for (i, patch) in (0u32..).zip(drawn.chunks_exact(side * side)) {
            let PatchPlace { image, top, left } = sampler.place(i);
            let (height, width) = (set.images()[image].height(), set.images()[image].width());
            assert!(top + side <= height && left + side <= width, "patch {i}");
            for (p, &value) in patch.iter().enumerate() {
                let (line, column) = (top + p / side, left + p % side);
                let want = first[image] + (line * width + column) as f64;
                assert_eq!(value, want, "patch {i}, pixel {p}, side {side}");
            }
        }
    }
    Ok(())
}

#[test]
fn patches_of_any_shape_are_cut_from_every_plane() -> Result<()> {
    let shape = ImageShape { height: 6, width: 9, channels: 3 };
    let pixels: Vec<f32> = (0..shape.n_features()).map(|i| i as f32).collect();
    let set = ImageSet::new("colour", vec![Image::from_f32("a", shape, pixels)?])?;
    let sampler = PatchSampler::new(set, (2, 5), 200, 3)?;
    assert_eq!(sampler.shape(), ImageShape { height: 2, width: 5, channels: 3 });
    let drawn = values(&sampler.draw(0..200, &Cpu)?);
    for (i, patch) in (0u32..).zip(drawn.chunks_exact(30)) {
        let PatchPlace { top, left, .. } = sampler.place(i);
        for (p, &value) in patch.iter().enumerate() {
            let (plane, line, column) = (p / 10, top + p % 10 / 5, left + p % 5);
            assert_eq!(value, (plane * 54 + line * 9 + column) as f64, "patch {i}, value {p}");
        }
    }
    // Every position is drawn: 5 lines by 5 columns.
    let mut places: Vec<_> = (0..200).map(|i| (sampler.place(i).top, sampler.place(i).left)).collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), 25);
    Ok(())
}

#[test]
fn bytes_stay_bytes_and_scale_to_the_unit_interval() -> Result<()> {
    let set = bytes_set()?;
    let sampler = PatchSampler::new(set.clone(), 5, 40, 9)?;
    assert_eq!(sampler.row_type(), RowType::U8);
    let mut stored = vec![0u8; 40 * 25];
    sampler.read_rows(&(0..40).collect::<Vec<_>>(), &mut stored)?;
    let drawn = values(&sampler.draw(0..40, &Cpu)?);
    for (i, (&byte, &value)) in stored.iter().zip(&drawn).enumerate() {
        let PatchPlace { image, top, left } = sampler.place((i / 25) as u32);
        let image = &set.images()[image];
        let pixel = image.to_f32()[(top + i % 25 / 5) * image.width() + left + i % 5];
        assert_eq!(byte, (pixel * 255.).round() as u8, "value {i}");
        assert!((value - f64::from(byte) / 255.).abs() < 1e-7, "value {i}");
    }
    Ok(())
}

#[test]
fn every_position_of_the_set_is_as_likely_as_any_other() -> Result<()> {
    // 3·2 = 6 positions in the first image, 1·4 in the second.
    let images = vec![numbered("a", 5, 4, 0), numbered("b", 3, 6, 1000)];
    let n = 10_000;
    let sampler = PatchSampler::new(ImageSet::new("two", images)?, 3, n, 3)?;
    let mut counts = [0f64; 10];
    for i in 0..n as u32 {
        let PatchPlace { image, top, left } = sampler.place(i);
        counts[if image == 0 { top * 2 + left } else { 6 + left }] += 1.;
    }
    let chi_squared = |expected: &dyn Fn(usize) -> f64| -> f64 {
        let terms = (0..10).map(|p| (counts[p] - expected(p)).powi(2) / expected(p));
        terms.sum()
    };
    // 9 degrees of freedom: one seed in a thousand exceeds 27.9.
    let uniform = chi_squared(&|_| 1000.);
    assert!(uniform < 27.9, "chi squared {uniform}, counts {counts:?}");
    // The test would notice images chosen alike whatever their areas.
    let by_image = chi_squared(&|p| if p < 6 { 5000. / 6. } else { 5000. / 4. });
    assert!(by_image > 100., "chi squared {by_image}");
    Ok(())
}

#[test]
fn places_are_those_of_the_formula() -> Result<()> {
    let set = three_images();
    let seed = 0xfeed_0000_0042;
    let sampler = PatchSampler::new(set.clone(), 3, 1, seed)?;
    let stream = u64::from_be_bytes(*b"patches\0");
    for i in [0, 1, 2, 77, u32::MAX] {
        let words = Philox::new(seed, stream).block(u64::from(i));
        let u = u128::from(words[0]) + (u128::from(words[1]) << 32);
        let positions: u128 = 5 * 3 + 2 * 9 + 4 * 7;
        let wanted = (u * positions) >> 64;
        // Counts through all windows one by one.
        let mut position = 0;
        let mut found = None;
        for (image, window) in set.images().iter().enumerate() {
            for top in 0..=window.height() - 3 {
                for left in 0..=window.width() - 3 {
                    if position == wanted {
                        found = Some(PatchPlace { image, top, left });
                    }
                    position += 1;
                }
            }
        }
        assert_eq!(position, positions);
        assert_eq!(Some(sampler.place(i)), found, "patch {i}");
    }
    Ok(())
}

#[test]
fn a_patch_depends_on_seed_and_index_alone() -> Result<()> {
    let draw = |n, seed| -> Result<Vec<f64>> {
        let sampler = PatchSampler::new(bytes_set()?, 4, n, seed)?;
        Ok(values(&sampler.draw(0..n as u32, &Cpu)?))
    };
    assert_eq!(draw(500, 1)?, draw(500, 1)?);
    assert_ne!(draw(500, 1)?, draw(500, 2)?);
    assert_eq!(draw(7, 1)?, draw(500, 1)?[..7 * 16]);

    let sampler = PatchSampler::new(bytes_set()?, 4, 500, 1)?;
    let mut rows = vec![0u8; 3 * 16];
    sampler.read_rows(&[499, 3, 499], &mut rows)?;
    let mut row = vec![0u8; 16];
    for (index, got) in [499, 3, 499].into_iter().zip(rows.chunks_exact(16)) {
        sampler.read_rows(&[index], &mut row)?;
        assert_eq!(got, row);
        let drawn = values(&sampler.draw(index..index + 1, &Cpu)?);
        assert!(got.iter().zip(&drawn).all(|(&b, v)| (f64::from(b) / 255. - v).abs() < 1e-7));
    }
    Ok(())
}

#[test]
fn an_image_as_large_as_the_patch_has_one_position() -> Result<()> {
    let image = numbered("only", 3, 3, 10);
    let sampler = PatchSampler::new(ImageSet::new("one", vec![image])?, 3, 5, 0)?;
    let drawn = values(&sampler.draw(0..5, &Cpu)?);
    let want: Vec<f64> = (10..19).map(f64::from).collect();
    assert!(drawn.chunks_exact(9).all(|patch| patch == want));
    Ok(())
}

#[test]
fn a_feed_streams_patches_that_nobody_stored() -> Result<()> {
    let sampler = PatchSampler::new(bytes_set()?, 6, 101, 4)?;
    let want = values(&sampler.draw(0..101, &Cpu)?);
    let dataset = sampler.into_dataset()?;
    assert_eq!(dataset.name, "bytes:6x6");
    assert_eq!(dataset.image(), Some(ImageShape::grey(6, 6)));
    let config = FeedConfig {
        shuffle: false,
        chunk_bytes: 10 * 36,
        resident_bytes: Some(0),
        ..FeedConfig::new(10, 0)
    };
    let mut feed = Feed::new(&dataset.train, &Cpu, config)?;
    feed.start_epoch(0, 0)?;
    let mut got = Vec::new();
    while let Some(minibatch) = feed.next()? {
        assert_eq!(minibatch.rows.dtype(), candle::DType::U8);
        got.extend(values(&(minibatch.rows.to_dtype(candle::DType::F32)? * feed.scale())?));
    }
    assert_eq!(got, want);
    Ok(())
}

#[test]
fn the_sampler_says_what_is_wrong() -> Result<()> {
    let new = |side, n| PatchSampler::new(three_images(), side, n, 0);
    assert_eq!(
        message(new(5, 10)),
        "three: image b is 11x4, smaller than a patch of 5x5; ask for smaller patches or leave the image out"
    );
    assert_eq!(message(new(0, 10)), "PatchSampler: size must be at least 1x1, got 0x0");
    assert_eq!(message(new(2, 0)), "PatchSampler: n_patches must be between 1 and 4294967295, got 0");
    assert_eq!(
        message(new(2, 1 << 32)),
        "PatchSampler: n_patches must be between 1 and 4294967295, got 4294967296"
    );
    let sampler = new(2, 10)?;
    assert_eq!(
        message(sampler.draw(4..11, &Cpu)),
        "PatchSampler.draw: range must not be empty and lie in 0..10, got 4..11"
    );
    assert_eq!(
        message(sampler.draw(4..4, &Cpu)),
        "PatchSampler.draw: range must not be empty and lie in 0..10, got 4..4"
    );
    Ok(())
}
