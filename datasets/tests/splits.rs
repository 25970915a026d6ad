//! Splits and sources: subsets, held-out rows, scaling, checks.
#![allow(clippy::unwrap_used)]
use crate::common::{TestResult, all_rows, message};
use candle::Device;
use chandlery_datasets::{Dataset, Fingerprint, ImageShape, KnownClasses, MemoryRows, Source, Split, Subset};
use std::path::Path;
use std::sync::Arc;

fn ten_rows() -> Split {
    let labels = (0..10).map(|i| i % 4).collect();
    Split::from_u8((0..20).collect(), 2, Some(labels)).unwrap()
}

#[test]
fn bytes_are_scaled_and_floats_are_not() -> TestResult {
    let bytes = Split::from_u8(vec![0, 51, 255, 102], 2, None)?;
    let want = [[0., 51. / 255.], [1., 102. / 255.]];
    for (got, want) in bytes.to_tensor(&Device::Cpu)?.to_vec2::<f32>()?.iter().zip(want) {
        for (got, want) in got.iter().zip(want) {
            // Multiplying by the rounded 1/255 is off by at most two roundings.
            assert!((got - want).abs() <= 2. * f32::EPSILON, "{got} for {want}");
        }
    }
    let floats = Split::from_f32(vec![0., -51., 255., 102.], 2, None)?;
    let got = floats.to_tensor(&Device::Cpu)?.to_vec2::<f32>()?;
    assert_eq!(got, [[0., -51.], [255., 102.]]);
    Ok(())
}

#[test]
fn a_subset_reads_through_to_the_rows_it_names() -> TestResult {
    let split = ten_rows().select(&[7, 2, 2])?;
    assert_eq!(all_rows(split.rows.as_ref())?, [14, 15, 4, 5, 4, 5]);
    assert_eq!(split.labels.as_deref(), Some(&[3u32, 2, 2][..]));
    let inner = split.take(2)?.select(&[1])?;
    assert_eq!(all_rows(inner.rows.as_ref())?, [4, 5]);
    Ok(())
}

#[test]
fn held_out_rows_are_disjoint_complete_and_seeded() -> TestResult {
    let split = ten_rows();
    let (kept, held) = split.hold_out(3, 5)?;
    let (kept_rows, held_rows) = (all_rows(kept.rows.as_ref())?, all_rows(held.rows.as_ref())?);
    assert_eq!((kept.n_samples(), held.n_samples()), (7, 3));
    let mut all = [kept_rows, held_rows.clone()].concat();
    all.sort_unstable();
    assert_eq!(all, (0..20).collect::<Vec<u8>>());
    for (row, label) in held_rows.chunks(2).zip(held.labels.as_deref().unwrap_or_default()) {
        assert_eq!(u32::from(row[0] / 2 % 4), *label);
    }
    let again = split.hold_out(3, 5)?.1;
    assert_eq!(all_rows(again.rows.as_ref())?, held_rows);
    let differs = (6..12).any(|seed| {
        let other = split.hold_out(3, seed).unwrap().1;
        all_rows(other.rows.as_ref()).unwrap() != held_rows
    });
    assert!(differs, "six other seeds drew the same rows");
    Ok(())
}

#[test]
fn large_gathers_agree_with_small_ones() -> TestResult {
    // Above the size from which threads share the copying.
    let n_features = 3000;
    let values: Vec<u8> = (0..1000 * n_features).map(|i| (i % 251) as u8).collect();
    let rows = MemoryRows::from_u8(values.clone(), n_features)?;
    let indices: Vec<u32> = (0..1000).map(|i| i * 7 % 1000).collect();
    let mut together = vec![0; values.len()];
    rows.read_rows(&indices, &mut together)?;
    for (index, row) in indices.iter().zip(together.chunks(n_features)) {
        let start = *index as usize * n_features;
        assert_eq!(row, &values[start..start + n_features]);
    }
    Ok(())
}

#[cfg(feature = "candle-datasets")]
#[test]
fn candle_datasets_are_taken_over() -> TestResult {
    use candle::Tensor;
    let images = |n: usize| Tensor::arange(0f32, (n * 12) as f32, &Device::Cpu);
    let data = candle_datasets::vision::Dataset {
        train_images: (images(2)?.reshape((2, 3, 2, 2))? / 24.)?,
        train_labels: Tensor::new(&[1u8, 0], &Device::Cpu)?,
        test_images: (images(1)?.reshape((1, 3, 2, 2))? / 24.)?,
        test_labels: Tensor::new(&[1u8], &Device::Cpu)?,
        labels: 2,
    };
    let data = Dataset::from_candle("two", &data)?;
    let image = ImageShape { height: 2, width: 2, channels: 3 };
    assert_eq!((data.image(), data.n_classes(), data.n_features()), (Some(image), 2, 12));
    let rows: Vec<f32> = (0..24).map(|i| i as f32 / 24.).collect();
    let got = data.train.to_tensor(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
    for (got, want) in got.iter().zip(rows) {
        assert!((got - want).abs() <= f32::EPSILON, "{got} for {want}");
    }
    assert_eq!(data.train.labels.as_deref(), Some(&[1u32, 0][..]));
    Ok(())
}

#[test]
fn splits_say_what_is_wrong() -> TestResult {
    let nowhere = Path::new("/nowhere");
    let split = ten_rows();
    assert_eq!(
        message(Split::from_u8(vec![1, 2, 3], 2, None), nowhere),
        "MemoryRows: n_features must be at least 1 and divide the number of values, got 2 for 3"
    );
    assert_eq!(
        message(Split::from_u8(vec![], 2, None), nowhere),
        "Split: rows must number between 1 and 4294967295, got 0"
    );
    assert_eq!(
        message(Split::from_u8(vec![1, 2], 1, Some(vec![0])), nowhere),
        "Split: 1 label for 2 rows; both must describe the same samples"
    );
    assert_eq!(
        message(Split::from_f32(vec![1., 2., 3., f32::NAN], 2, None), nowhere),
        "MemoryRows: row 1, column 1 is NaN; replace or drop such values and save again"
    );
    assert_eq!(
        message(split.hold_out(10, 0), nowhere),
        "hold_out: n must be at least 1 and below the number of rows, got 10 of 10"
    );
    assert_eq!(
        message(Subset::new(split.rows.clone(), vec![3, 10]), nowhere),
        "Subset: index must be below n_samples, got 10 of 10"
    );
    let mut out = [0; 3];
    assert_eq!(
        message(split.rows.read_rows(&[10], &mut out[..2]), nowhere),
        "read_rows: index must be below n_samples, got 10 of 10"
    );
    assert_eq!(
        message(split.rows.read_rows(&[1], &mut out), nowhere),
        "read_rows: out must hold 2 bytes for 1 row, got 3"
    );
    let image = Some(ImageShape::grey(2, 2));
    assert_eq!(
        message(split.clone().with_image(image), nowhere),
        "image shape 2x2x1 has 4 values, rows have 2"
    );
    let other = Split::new(Arc::new(MemoryRows::from_f32(vec![1., 2.], 2)?), None)?;
    assert_eq!(
        message(Dataset::new("x", split, Some(other), None), nowhere),
        "x: training rows are 2 values of U8, test rows 2 of F32; give splits of the same shape and type"
    );
    Ok(())
}

#[test]
fn a_fingerprint_says_what_of_a_data_set_changed() -> TestResult {
    let of = |split: &Split, names: &[&str]| -> chandlery_datasets::Result<Fingerprint> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        Fingerprint::of([split], Some(&names))
    };
    let split = |values: Vec<u8>, width, labels: Vec<u32>| Split::from_u8(values, width, Some(labels));
    let whole = split((0..20).collect(), 2, vec![0; 10])?;
    let begun = of(&whole, &["a", "b"])?;
    assert_eq!(begun.difference(&of(&whole.clone(), &["a", "b"])?), None);
    let mut one: Vec<u8> = (0..20).collect();
    one[11] = 99;
    let labels = vec![0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    let cases = [
        (of(&whole.take(9)?, &["a", "b"])?, "the number of its rows"),
        (of(&split((0..30).collect(), 3, vec![0; 10])?, &["a", "b"])?, "the size or the type of its rows"),
        (of(&split(one, 2, vec![0; 10])?, &["a", "b"])?, "the values of its rows"),
        (of(&whole, &["a", "c"])?, "the names of its classes"),
        (of(&whole, &["ab", ""])?, "the names of its classes"),
        (of(&split((0..20).collect(), 2, labels)?, &["a", "b"])?, "its labels"),
    ];
    for (now, want) in cases {
        assert_eq!(begun.difference(&now), Some(want));
    }
    // A test split that came or went.
    let two = Fingerprint::of([&whole, &whole], None)?;
    assert_eq!(Fingerprint::of([&whole], None)?.difference(&two), Some("the number of its rows"));
    Ok(())
}

#[test]
fn labels_are_renumbered_by_the_names_of_their_classes() -> TestResult {
    let names = |of: &[&str]| of.iter().map(ToString::to_string).collect::<Vec<_>>();
    let (known, theirs) = (names(&["cat", "dog", "owl", "7"]), names(&["dog", "owl", "07", "cow"]));
    let known = KnownClasses { names: Some(&known), n: 4 };
    assert_eq!(known.renumber("x", &[1, 0, 2, 0], Some(&theirs))?, [2, 1, 3, 1]);
    // A class that no row has is no error.
    let refused = known.renumber("x.csv", &[0, 3], Some(&theirs)).map_err(|err| err.to_string());
    assert_eq!(refused, Err("x.csv: no class 'cow'; there are: 7, cat, dog, owl".to_owned()));
    assert_eq!(known.renumber("x", &[7], None)?, [3]);
    let numbers = KnownClasses { names: None, n: 10 };
    assert_eq!(numbers.renumber("x", &[1, 0], Some(&names(&["3", "9"])))?, [9, 3]);
    let refused = numbers.renumber("x", &[10], None).map_err(|err| err.to_string());
    assert_eq!(refused, Err("x: no class '10'; there are: 0 to 9".to_owned()));
    Ok(())
}
