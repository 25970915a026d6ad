//! `.npy` and `.safetensors`: headers, shapes, types, and values that are no numbers.
use super::refusal;
use crate::common::*;
use chandlery_datasets::DataOptions;

#[test]
fn npy_with_nan_or_infinity_names_row_and_column() -> TestResult {
    for (value, text) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let mut values = [0f32; 12];
        values[7] = value;
        values[9] = value;
        assert_eq!(
            refusal("x.npy", &npy("<f4", &[4, 3], &f32s(&values)))?,
            format!("DIR/x.npy: row 2, column 1 is {text}; replace or drop such values and save again")
        );
        let doubles: Vec<u8> = values.iter().flat_map(|&v| f64::from(v).to_le_bytes()).collect();
        assert_eq!(
            refusal("x.npy", &npy("<f8", &[4, 3], &doubles))?,
            format!("DIR/x.npy: row 2, column 1 is {text}; replace or drop such values and save again")
        );
    }
    // A double beyond the range of floats.
    let doubles: Vec<u8> = [0., 1e39].iter().flat_map(|v: &f64| v.to_le_bytes()).collect();
    assert_eq!(
        refusal("x.npy", &npy("<f8", &[2, 1], &doubles))?,
        "DIR/x.npy: row 1, column 0 is inf; replace or drop such values and save again"
    );
    // Far into the file, where another thread looks.
    let mut values = vec![0f32; 1 << 18];
    values[200_000] = f32::NAN;
    assert_eq!(
        refusal("x.npy", &npy("<f4", &[1 << 16, 4], &f32s(&values)))?,
        "DIR/x.npy: row 50000, column 0 is NaN; replace or drop such values and save again"
    );
    Ok(())
}

#[test]
fn npy_that_is_truncated() -> TestResult {
    let whole = npy("<f4", &[2, 3], &f32s(&[0.; 6]));
    assert_eq!(
        refusal("x.npy", &whole[..whole.len() - 1])?,
        "DIR/x.npy: truncated: shape [2, 3] of <f4 needs more than the 23 bytes there; copy or make the file again"
    );
    for length in 0..whole.len() {
        let text = refusal("x.npy", &whole[..length])?;
        assert!(text.starts_with("DIR/x.npy: "), "{length} bytes: {text}");
    }
    Ok(())
}

#[test]
fn npy_of_a_shape_or_type_that_makes_no_rows() -> TestResult {
    assert_eq!(
        refusal("x.npy", &npy("<f4", &[6], &f32s(&[0.; 6])))?,
        "DIR/x.npy: has shape [6], want [n_samples, n_features]; reshape it; a single column is x[:, None]"
    );
    assert_eq!(
        refusal("x.npy", &npy("<c8", &[1, 1], &[0; 8]))?,
        "DIR/x.npy: holds values of type <c8, want whole numbers, floats of 16 to 64 bits or truth values; save x.astype('float32')"
    );
    assert_eq!(
        refusal("x.npy", &npy("<f4", &[1 << 40, 1 << 40], &[0; 16]))?,
        "DIR/x.npy: holds 1099511627776 rows, more than 4294967295 can be indexed; split the file"
    );
    Ok(())
}

#[test]
fn npy_with_a_header_that_is_no_header() -> TestResult {
    for header in ["{'descr': \u{e9}", "", "{'descr': '<f4'}", "[1, 2]"] {
        let text = refusal("x.npy", &npy_with_header(header, &[]))?;
        assert!(text.starts_with("DIR/x.npy: the header cannot be read: "), "{header}: {text}");
        assert!(text.ends_with("; write the file again with numpy.save"), "{header}: {text}");
    }
    let mut bytes = npy("<f4", &[1, 1], &[0; 4]);
    bytes[14] = 0xff; // No UTF-8 starts so.
    let text = refusal("x.npy", &bytes)?;
    assert!(text.starts_with("DIR/x.npy: the header cannot be read: "), "{text}");
    Ok(())
}

#[test]
fn npy_with_a_header_that_would_cost_memory_or_stack() -> TestResult {
    // The second version says the length in four bytes.
    let mut bytes = b"\x93NUMPY\x02\x00".to_vec();
    bytes.extend(4_000_000_000u32.to_le_bytes());
    assert_eq!(
        refusal("x.npy", &bytes)?,
        "DIR/x.npy: the header cannot be read: it says that it has 4000000000 bytes, want at most 65535; write the file again \
         with numpy.save"
    );
    for (bracket, times) in [("(", 60_000), ("[", 60_000), ("{", 32), ("[", 8)] {
        let deep = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {}", bracket.repeat(times));
        assert_eq!(
            refusal("x.npy", &npy_with_header(&deep, &[]))?,
            "DIR/x.npy: the header cannot be read: it opens more than 8 brackets; write the file again with numpy.save",
            "{bracket} {times} times"
        );
    }
    // As many as are parsed do not take the parser long.
    for text in ["(".repeat(8), "[".repeat(8), "{".repeat(8), "[{(([{(".to_owned()] {
        let text = refusal("x.npy", &npy_with_header(&text, &[]))?;
        assert!(text.starts_with("DIR/x.npy: the header cannot be read: could not parse"), "{text}");
    }
    Ok(())
}

#[test]
fn columns_are_refused_where_there_are_none() -> TestResult {
    let dir = tempfile::tempdir()?;
    let (array, packed) = (dir.path().join("x.npy"), dir.path().join("x-ubyte"));
    std::fs::write(&array, npy("|u1", &[1, 1], &[0]))?;
    std::fs::write(&packed, crate::common::idx(0x803, &[1, 1, 1], &[0]))?;
    std::fs::create_dir(dir.path().join("images"))?;
    std::fs::write(dir.path().join("images/a.png"), png(1, 1, &[0])?)?;
    let features = DataOptions { features: Some("a".to_owned()), ..DataOptions::default() };
    for (name, holds) in [
        ("x.npy", "a .npy file holds one array"),
        ("x-ubyte", "an idx file holds one array"),
        ("images", "a folder of images holds rows"),
    ] {
        assert_eq!(
            message(open_with(&dir.path().join(name), features.clone()), dir.path()),
            format!("DIR/{name}: {holds}, and nothing to choose by 'a'; leave out `DataOptions::features`")
        );
    }
    let labels = DataOptions { labels: Some("a".to_owned()), ..DataOptions::default() };
    assert_eq!(
        message(open_with(&packed, labels), dir.path()),
        "DIR/x-ubyte: an idx file has its labels in a file beside it, and nothing to choose by 'a'; leave out \
         `DataOptions::labels`"
    );
    Ok(())
}

#[test]
fn safetensors_of_several_tensors_ask_for_the_option() -> TestResult {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x.safetensors");
    let zeros = |n: usize| candle::Tensor::zeros((n, 2), candle::DType::F32, &candle::Device::Cpu);
    candle::safetensors::save(&std::collections::HashMap::from([("b", zeros(2)?), ("a", zeros(3)?)]), &path)?;
    assert_eq!(
        message(open_path(&path), dir.path()),
        "DIR/x.safetensors: no tensor is called x, x_train, data, features or the like, and not one alone has rows; there are: a, \
         b; name the tensor of the rows by `DataOptions::features`"
    );
    let options = DataOptions {
        features: Some("a".to_owned()),
        test_split: Some("b".to_owned()),
        ..DataOptions::default()
    };
    let data = open_with(&path, options)?;
    assert_eq!((data.train.n_samples(), data.test.map(|test| test.n_samples())), (3, Some(2)));
    // Names as other libraries write them.
    candle::safetensors::save(
        &std::collections::HashMap::from([("train.x", zeros(2)?), ("X-val", zeros(3)?)]),
        &path,
    )?;
    let data = open_path(&path)?;
    assert_eq!((data.train.n_samples(), data.test.map(|test| test.n_samples())), (2, Some(3)));
    Ok(())
}

#[test]
fn npy_labels_that_do_not_fit() -> TestResult {
    let dir = tempfile::tempdir()?;
    let (x, y) = (dir.path().join("x.npy"), dir.path().join("y.npy"));
    std::fs::write(&x, npy("|u1", &[2, 1], &[0, 0]))?;
    let options = DataOptions { labels: Some(y.display().to_string()), ..DataOptions::default() };
    std::fs::write(&y, npy("|u1", &[3], &[0; 3]))?;
    assert_eq!(
        message(open_with(&x, options.clone()), dir.path()),
        "DIR/x.npy and DIR/y.npy: 3 labels for 2 rows; both must describe the same samples"
    );
    for (labels, want) in [
        (
            npy("<i4", &[2], &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
            "DIR/y.npy: row 1 has label -1; labels are class numbers from 0 on",
        ),
        (
            npy("<c8", &[2], &[0; 16]),
            "DIR/y.npy: holds values of type <c8, want whole numbers or texts for labels; save y.astype('int64') or y.astype('str')",
        ),
        (
            npy("|u1", &[1, 2], &[0; 2]),
            "DIR/y.npy: has shape [1, 2], want [n_samples] for labels; save y.ravel(), or y.argmax(1) of one-hot rows",
        ),
    ] {
        std::fs::write(&y, labels)?;
        assert_eq!(left_out(open_with(&x, options.clone()), dir.path()), want);
    }
    Ok(())
}

/// A `.safetensors` file with one tensor.
fn safetensors(dtype: &str, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let end = data.len();
    let header = format!(r#"{{"x":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[0,{end}]}}}}"#);
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

#[test]
fn safetensors_that_make_no_rows() -> TestResult {
    let mut values = [0f32; 6];
    values[5] = f32::NAN;
    assert_eq!(
        refusal("x.safetensors", &safetensors("F32", &[2, 3], &f32s(&values)))?,
        "DIR/x.safetensors, tensor 'x': row 1, column 2 is NaN; replace or drop such values and save again"
    );
    assert_eq!(
        refusal("x.safetensors", &safetensors("F32", &[6], &f32s(&[0.; 6])))?,
        "DIR/x.safetensors, tensor 'x': has shape [6], want [n_samples, n_features]; reshape it; a single column is x[:, None]"
    );
    assert_eq!(
        refusal("x.safetensors", &safetensors("F8_E4M3", &[1, 1], &[0]))?,
        "DIR/x.safetensors, tensor 'x': holds values of type F8_E4M3, want whole numbers, floats of 16 to 64 bits or truth values; \
         save x.astype('float32')"
    );
    Ok(())
}

#[test]
fn safetensors_without_the_tensor_asked_for() -> TestResult {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x.safetensors");
    std::fs::write(&path, safetensors("F32", &[1, 1], &[0; 4]))?;
    let options = DataOptions { features: Some("y".to_owned()), ..DataOptions::default() };
    assert_eq!(
        message(open_with(&path, options), dir.path()),
        "DIR/x.safetensors: no tensor 'y'; there are: x"
    );
    Ok(())
}

#[test]
fn safetensors_that_are_truncated_or_damaged() -> TestResult {
    let whole = safetensors("F32", &[2, 3], &f32s(&[1.; 6]));
    assert_eq!(
        refusal("x.safetensors", &whole[..whole.len() - 4])?,
        "DIR/x.safetensors: not a whole .safetensors file: incomplete metadata, file not fully covered; copy or make the \
         file again"
    );
    for length in 0..whole.len() {
        let text = refusal("x.safetensors", &whole[..length])?;
        assert!(
            text.starts_with("DIR/x.safetensors: not a whole .safetensors file: "),
            "{length} bytes: {text}"
        );
    }
    let mut bytes = whole;
    bytes[9] = 0xff;
    let text = refusal("x.safetensors", &bytes)?;
    assert!(text.starts_with("DIR/x.safetensors: not a whole .safetensors file: "), "{text}");
    Ok(())
}
