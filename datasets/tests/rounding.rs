//! Values in f64 lose what a centre takes from them, and what rounding costs is told.
use crate::common::*;
use chandlery_datasets::{Centre, DataOptions, Dataset, Rounding, Source, Subset};
use std::path::Path;
use std::sync::Arc;

const N: usize = 400;

/// Three columns that are far from 0: by a hundred million, not at all, and by a thousand; each
/// varies by about 1.
fn values() -> Vec<f64> {
    let wave = |i: usize, c: usize| (((i * (7 + c) + 3 * c) % 101) as f64 - 50.) / 29.;
    (0..3 * N).map(|at| wave(at / 3, at % 3) + [1e8, 0., 1e3][at % 3]).collect()
}

fn f64s(values: &[f64], bytes: fn(f64) -> [u8; 8]) -> Vec<u8> {
    values.iter().flat_map(|&x| bytes(x)).collect()
}

/// Files of the same values.
fn files(folder: &Path, values: &[f64]) -> Result<Vec<std::path::PathBuf>, Box<dyn std::error::Error>> {
    let n = values.len() / 3;
    let little = npy("<f8", &[n, 3], &f64s(values, f64::to_le_bytes));
    let turned: Vec<f64> = (0..3).flat_map(|c| values.iter().skip(c).step_by(3).copied()).collect();
    let fortran = format!("{{'descr': '<f8', 'fortran_order': True, 'shape': ({n}, 3), }}");
    let table: String =
        values.chunks(3).map(|row| format!("{:?},{:?},{:?}\n", row[0], row[1], row[2])).collect();
    let mut written = vec![
        ("little.npy", little.clone()),
        ("big.npy", npy(">f8", &[n, 3], &f64s(values, f64::to_be_bytes))),
        ("fortran.npy", npy_with_header(&fortran, &f64s(&turned, f64::to_le_bytes))),
        ("rows.npz", npz(&[("x", little)], true)?),
        ("rows.csv", table.into_bytes()),
    ];
    let view = |dtype, bytes: &Vec<u8>| {
        safetensors::tensor::TensorView::new(dtype, vec![n, 3], bytes)
            .map(|view| safetensors::serialize([("x", view)], None))
    };
    written.push(("rows.safetensors", view(safetensors::Dtype::F64, &f64s(values, f64::to_le_bytes))??));
    let schema = "message schema { required double a; required double b; required double c; }";
    let columns = turned.chunks(n).map(|column| Leaf::Doubles(column.to_vec())).collect();
    written.push(("rows.parquet", parquet(schema, None, &[columns])?));
    let mut paths = vec![];
    for (name, bytes) in written {
        paths.push(folder.join(name));
        std::fs::write(folder.join(name), bytes)?;
    }
    Ok(paths)
}

fn floats(rows: &dyn Source) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
    let bytes = all_rows(rows)?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_ne_bytes(*b)).collect())
}

fn opened(path: &Path, centre: Option<Centre>) -> chandlery_datasets::Result<Dataset> {
    open_with(path, DataOptions { centre, ..DataOptions::default() })
}

#[test]
fn columns_far_from_0_are_centred_before_they_are_rounded() -> TestResult {
    let (folder, values) = (tempfile::tempdir()?, values());
    for path in files(folder.path(), &values)? {
        let what = path.display().to_string();
        let centre = Centre::default();
        let data = opened(&path, Some(centre.clone())).map_err(|e| format!("{what}: {e}"))?;
        let found = centre.values().ok_or("no centre")?.to_vec();
        // The others are held well, and stay as they are.
        assert!((found[0] - 1e8).abs() < 1. && found[1..] == [0., 0.], "{what}: {found:?}");
        let rounding = data.train.rows.rounding().ok_or("nothing told")?;
        assert_eq!(rounding, &Rounding { centre: found.clone(), cost: None }, "{what}");
        for (at, (got, x)) in floats(data.train.rows.as_ref())?.iter().zip(&values).enumerate() {
            assert_eq!(*got, (x - found[at % 3]) as f32, "{what}: value {at}");
        }
        // Some of the rows know of it, and a limit of rows changes nothing but the centre.
        let some = Subset::new(data.train.rows.clone(), vec![3u32, 1])?;
        assert_eq!(some.rounding(), Some(rounding), "{what}");
        // What is given is what is taken.
        let given = opened(&path, Some(Centre::new(vec![1e8, -1., 0.])))?;
        let rounding = given.train.rows.rounding().ok_or("nothing told")?;
        assert_eq!(rounding.centre, [1e8, -1., 0.], "{what}");
        let (first, x) = (floats(given.train.rows.as_ref())?, &values);
        assert_eq!(first[..3], [(x[0] - 1e8) as f32, (x[1] + 1.) as f32, x[2] as f32], "{what}");
    }
    Ok(())
}

#[test]
fn without_a_centre_values_are_rounded_and_the_cost_is_told() -> TestResult {
    let (folder, values) = (tempfile::tempdir()?, values());
    for path in files(folder.path(), &values)? {
        let data = opened(&path, None)?;
        let rounded: Vec<f32> = values.iter().map(|&x| x as f32).collect();
        assert_eq!(floats(data.train.rows.as_ref())?, rounded);
        let rounding = data.train.rows.rounding().ok_or("nothing told")?;
        // Numbers of f32 are 8 apart at 1e8, where rounding is off by more than the column varies.
        assert!(
            rounding.centre.is_empty() && rounding.cost.is_some_and(|(c, cost)| c == 0 && cost > 0.5),
            "{rounding:?}"
        );
    }
    Ok(())
}

#[test]
fn plain_values_and_whole_numbers_stay_as_they_are() -> TestResult {
    let folder = tempfile::tempdir()?;
    let plain: Vec<f64> = (0..3 * N).map(|i| ((i * 37) % 211) as f64 / 100. - 1.).collect();
    let whole: Vec<f64> = (0..3 * N).map(|i| 1e6 + ((i * 37) % 7) as f64).collect();
    let constant = vec![0.1; 3 * N];
    for values in [plain, whole, constant] {
        for path in files(folder.path(), &values)? {
            let centre = Centre::default();
            let data = opened(&path, Some(centre.clone()))?;
            assert_eq!((centre.values(), data.train.rows.rounding()), (None, None), "{}", path.display());
            let rounded: Vec<f32> = values.iter().map(|&x| x as f32).collect();
            assert_eq!(floats(data.train.rows.as_ref())?, rounded);
        }
    }
    Ok(())
}

#[test]
fn whole_numbers_of_64_bits_are_centred_as_they_are() -> TestResult {
    // Nanoseconds since 1970, a second apart.
    let folder = tempfile::tempdir()?;
    let at = |i: usize| 1_700_000_000_000_000_000i64 + i as i64 * 1_000_000;
    let bytes: Vec<u8> = (0..N).flat_map(|i| at(i).to_le_bytes()).collect();
    let path = folder.path().join("x.npy");
    std::fs::write(&path, npy("<i8", &[N, 1], &bytes))?;
    let centre = Centre::default();
    let rows = floats(opened(&path, Some(centre.clone()))?.train.rows.as_ref())?;
    let steps: Vec<f32> = rows.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // f64 holds them to 256.
    assert!(steps.iter().all(|step| (step - 1e6).abs() < 600.), "{steps:?}");
    let told = opened(&path, None)?.train.rows.rounding().and_then(|rounding| rounding.cost);
    assert!(told.is_some_and(|(_, cost)| cost > 0.1), "{told:?}");
    Ok(())
}

#[test]
fn all_that_is_read_with_one_centre_has_the_same() -> TestResult {
    let (folder, values) = (tempfile::tempdir()?, values());
    let (train, test) = values.split_at(3 * 250);
    let array = |values: &[f64]| npy("<f8", &[values.len() / 3, 3], &f64s(values, f64::to_le_bytes));
    let path = folder.path().join("both.npz");
    std::fs::write(&path, npz(&[("x_train", array(train)), ("x_test", array(test))], false)?)?;
    let data = opened(&path, Some(Centre::default()))?;
    let of = |rows: &Arc<dyn Source>| rows.rounding().map(|rounding| rounding.centre.clone());
    let test = data.test.ok_or("no test rows")?;
    assert!(of(&data.train.rows).is_some_and(|centre| centre[0] != 0.));
    assert_eq!(of(&data.train.rows), of(&test.rows));
    Ok(())
}
