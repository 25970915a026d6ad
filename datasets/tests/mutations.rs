//! Thousands of damaged files of every format: each is read, or refused by a line that names it, in
//! bounded time and memory.
//!
//! `CHANDLERY_MUTANTS=100000 cargo test -p chandlery-datasets --test mutations` makes more of them;
//! see `common/mutants.rs`.
mod common;
#[path = "common/gauge.rs"]
mod gauge;
#[path = "common/mutants.rs"]
mod mutants;
#[path = "common/tiff.rs"]
mod pages;

use chandlery_datasets::{DataOptions, MAX_CLASSES, Split, open};
use common::*;
use image::{DynamicImage, ImageFormat};
use mutants::{Whole, campaign};
use std::collections::HashMap;
use std::io::{Cursor, Write};
use std::path::Path;

#[global_allocator]
static GAUGE: gauge::Gauge = gauge::Gauge;

type BoxResult<T> = Result<T, Box<dyn std::error::Error>>;

/// Mutants of a plain `cargo test`: some seconds.
const MUTANTS: u64 = 12_000;

#[test]
fn no_damaged_file_ends_the_program_or_goes_unnamed() -> TestResult {
    let mut wholes = arrays()?;
    wholes.extend(tables()?);
    wholes.extend(images()?);
    wholes.extend(matrices()?);
    #[cfg(feature = "hdf5")]
    wholes.extend(hdf5()?);
    campaign("no_damaged_file_ends_the_program_or_goes_unnamed", &wholes, MUTANTS, open_and_read);
    Ok(())
}

fn open_and_read(folder: &Path, whole: &Whole) -> Result<(), String> {
    let spec = match whole.spec.as_str() {
        "" => folder.to_owned(),
        spec => folder.join(spec),
    };
    // Labels of an array lie in a file of their own.
    let labels = (whole.path == "y.npy").then(|| folder.join(&whole.path).display().to_string());
    let options = DataOptions { labels, ..DataOptions::default() };
    let data = open(&spec.display().to_string(), &options).map_err(|e| e.to_string())?;
    read(&data.train).map_err(|e| format!("{}: {e}", folder.display()))?;
    data.test.as_ref().map_or(Ok(()), read).map_err(|e| format!("{}: {e}", folder.display()))?;
    assert!(data.n_classes() <= MAX_CLASSES, "{} classes", data.n_classes());
    if let Some(image) = data.image() {
        assert_eq!(image.n_features(), data.n_features());
    }
    Ok(())
}

/// Reads all rows, a megabyte at a time; of many, the first.
fn read(split: &Split) -> chandlery_datasets::Result<()> {
    let row_bytes = split.n_features() * split.row_type().size_bytes();
    let per_block = ((1 << 20) / row_bytes).max(1);
    let most = if split.rows.is_sparse() { 1 << 10 } else { usize::MAX };
    let indices: Vec<u32> = (0..split.n_samples().min(most) as u32).collect();
    let mut out = vec![];
    for block in indices.chunks(per_block) {
        out.resize(block.len() * row_bytes, 0);
        split.rows.read_rows(block, &mut out)?;
    }
    if let Some(labels) = &split.labels {
        assert_eq!(labels.len(), split.n_samples());
    }
    Ok(())
}

fn wrap_gz(bytes: &[u8]) -> Vec<u8> {
    gz(bytes).unwrap_or_default()
}

/// The array `x` of an archive is damaged, and packed again with its checksum.
fn wrap_npz(bytes: &[u8]) -> Vec<u8> {
    let y = npy("|u1", &[6], &[0, 1, 2, 0, 1, 2]);
    npz(&[("x", bytes.to_vec()), ("y", y)], true).unwrap_or_default()
}

/// Checksums of the chunks of a PNG are made right, as far as its lengths lead.
fn wrap_png(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let mut at = 8;
    while let Some(length) = bytes.get(at..at + 4) {
        let length = length.iter().fold(0, |length, &b| length << 8 | usize::from(b));
        let Some(body) = bytes.get(at + 4..at + 8 + length) else { break };
        let mut checksum = flate2::Crc::new();
        checksum.update(body);
        let sum = checksum.sum().to_be_bytes();
        let Some(place) = bytes.get_mut(at + 8 + length..at + 12 + length) else { break };
        place.copy_from_slice(&sum);
        at += 12 + length;
    }
    bytes
}

fn i4(values: &[i32]) -> Vec<u8> {
    npy("<i4", &[values.len()], &values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
}

/// One array of a matrix is damaged, and packed again with the others.
fn wrap_matrix(damaged: &str, bytes: &[u8]) -> Vec<u8> {
    let mut arrays = vec![
        ("format", npy("|S3", &[], b"csr")),
        ("shape", i4(&[3, 5])),
        ("indptr", i4(&[0, 2, 2, 4])),
        ("indices", i4(&[4, 1, 0, 0])),
        ("data", npy("<f4", &[4], &f32s(&[1., 2., 3., 4.]))),
    ];
    for (name, array) in &mut arrays {
        if *name == damaged {
            *array = bytes.to_vec();
        }
    }
    npz(&arrays, true).unwrap_or_default()
}

fn matrices() -> BoxResult<Vec<Whole>> {
    let text =
        "%%MatrixMarket matrix coordinate real general\n% a note\n3 5 4\n1 5 1.5\n1 2 -2\n3 1 3e1\n3 1 4\n";
    let array = "%%MatrixMarket matrix array integer symmetric\n2 2\n1\n2\n3\n";
    let cells = "%%MatrixMarket matrix coordinate integer general\n5 3 2\n1 3 4\n5 1 2\n";
    let (genes, barcodes) = ("a\nb\nc\nd\ne\n", "x\ny\nz\n");
    Ok(vec![
        Whole::new("x.mtx", text.as_bytes().to_vec()),
        Whole::new("x.mtx", array.as_bytes().to_vec()),
        Whole::new("x.mtx.gz", gz(text.as_bytes())?),
        Whole::new("x.mtx.gz", text.as_bytes().to_vec()).wrapped(wrap_gz),
        Whole::new("matrix.mtx", cells.as_bytes().to_vec())
            .with("genes.tsv", genes.as_bytes().to_vec())
            .with("barcodes.tsv", barcodes.as_bytes().to_vec())
            .opened_by(""),
        Whole::new("x.npz", npy("|S3", &[], b"csr")).wrapped(|bytes| wrap_matrix("format", bytes)),
        Whole::new("x.npz", i4(&[3, 5])).wrapped(|bytes| wrap_matrix("shape", bytes)),
        Whole::new("x.npz", i4(&[0, 2, 2, 4])).wrapped(|bytes| wrap_matrix("indptr", bytes)),
        Whole::new("x.npz", i4(&[4, 1, 0, 0])).wrapped(|bytes| wrap_matrix("indices", bytes)),
        Whole::new("x.npz", npy("<f4", &[4], &f32s(&[1., 2., 3., 4.])))
            .wrapped(|bytes| wrap_matrix("data", bytes)),
    ])
}

/// AnnData by rows, by columns and dense, and what 10x Genomics writes.
#[cfg(feature = "hdf5")]
fn hdf5() -> BoxResult<Vec<Whole>> {
    let mut wholes = Vec::new();
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".h5ad") || name.ends_with(".h5") {
            wholes.push(Whole::new(&name, std::fs::read(&path)?));
        }
    }
    wholes.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(wholes)
}

fn arrays() -> BoxResult<Vec<Whole>> {
    let bytes: Vec<u8> = (0..24).collect();
    let floats = f32s(&[0.5; 24]);
    let doubles: Vec<u8> = (0..24).flat_map(|i| f64::from(i).to_be_bytes()).collect();
    let longs: Vec<u8> = (0..6i64).flat_map(i64::to_le_bytes).collect();
    let fortran = "{'descr': '>f8', 'fortran_order': True, 'shape': (6, 2, 2), }";
    let old = npy("|u1", &[6, 4], &bytes);
    // The second version of the format has four bytes for the length of its header.
    let wide = [&b"\x93NUMPY\x02\x00"[..], &old[8..10], &[0, 0], &old[10..]].concat();
    let archive = vec![
        ("x_train", npy("|u1", &[6, 2, 2], &bytes)),
        ("y_train", npy("<i8", &[6], &longs)),
        ("x_test", npy("|u1", &[6, 2, 2], &bytes)),
        ("y_test", npy("<i8", &[6], &longs)),
    ];
    let device = candle::Device::Cpu;
    let tensors = HashMap::from([
        ("x_train", candle::Tensor::from_vec(vec![0.5f32; 24], (6, 4), &device)?),
        ("y_train", candle::Tensor::new(&[0u32, 1, 2, 0, 1, 2], &device)?),
        ("x_test", candle::Tensor::from_vec(vec![0.5f32; 8], (2, 4), &device)?),
    ]);
    let half =
        candle::Tensor::from_vec(vec![0.5f32; 24], (6, 2, 2), &device)?.to_dtype(candle::DType::BF16)?;
    let dir = tempfile::tempdir()?;
    let saved = |tensors: &HashMap<&str, candle::Tensor>| -> BoxResult<Vec<u8>> {
        let path = dir.path().join("x.safetensors");
        candle::safetensors::save(tensors, &path)?;
        Ok(std::fs::read(path)?)
    };
    let pictures = idx(0x803, &[6, 2, 2], &bytes);
    let classes = idx(0x801, &[6], &[0, 1, 2, 0, 1, 2]);
    let (pictures_name, classes_name) = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte");
    let packed_name = "train-images-idx3-ubyte.gz";
    Ok(vec![
        Whole::new("x.npy", old),
        Whole::new("x.npy", wide),
        Whole::new("x.npy", npy("<f4", &[6, 4], &floats)),
        Whole::new("x.npy", npy_with_header(fortran, &doubles)),
        Whole::new("x.npy", npy("<f2", &[6, 2], &[0; 24])),
        Whole::new("y.npy", npy("<i8", &[6], &longs))
            .with("x.npy", npy("<i8", &[6, 1], &longs))
            .opened_by("x.npy"),
        Whole::new("y.npy", npy("<U3", &[6], &utf_32(&["ant", "bee", "ox", "bee", "é", "ant"], 3)))
            .with("x.npy", npy("|u1", &[6, 1], &[0; 6]))
            .opened_by("x.npy"),
        Whole::new("y.npy", npy("|S2", &[6], b"a\0b\0cca\0b\0cc"))
            .with("x.npy", npy("|u1", &[6, 1], &[0; 6]))
            .opened_by("x.npy"),
        Whole::new("x.npz", npz(&archive, false)?),
        Whole::new("x.npz", npz(&archive, true)?),
        Whole::new("x.npz", npy("<f4", &[6, 4], &floats)).wrapped(wrap_npz),
        Whole::new("x.safetensors", saved(&tensors)?),
        Whole::new("x.safetensors", saved(&HashMap::from([("codes", half)]))?),
        Whole::new(pictures_name, pictures.clone()).with(classes_name, classes.clone()),
        Whole::new(classes_name, classes.clone()).with(pictures_name, pictures.clone()).opened_by(""),
        Whole::new(packed_name, gz(&pictures)?),
        Whole::new(packed_name, pictures).wrapped(wrap_gz).with(classes_name, classes).opened_by(""),
    ])
}

fn tables() -> BoxResult<Vec<Whole>> {
    let header = "label,a,b\n3,1.5,-2e3\n0,.25,7\n1,0,\"1\"\n";
    let bare = "5.1;3.5;setosa\r\n4.9;3.0;virginica\r\n4.7;3.2;setosa\r\n";
    let pictures = [png(2, 2, &[0, 9, 8, 7])?, png(2, 2, &[1, 2, 3, 4])?, png(2, 2, &[5; 4])?];
    let numbers = "message schema {
        required double a; required float b; optional int64 y; required binary species (UTF8);
    }";
    let leaves = vec![
        Leaf::Doubles(vec![1., 2., 3.]),
        Leaf::Floats(vec![4., 5., 6.], vec![], vec![]),
        Leaf::Longs(vec![7, 8, 9], vec![1; 3]),
        Leaf::Bytes(["a", "b", "a"].map(|text| text.as_bytes().to_vec()).to_vec(), vec![]),
    ];
    let lists = "message schema {
        optional group pixels (LIST) { repeated group list { optional int32 element (UINT_8); } }
        optional int64 y;
    }";
    let pixels = Leaf::Ints(vec![1, 2, 3, 4, 255, 0], vec![3; 6], vec![0, 1, 0, 1, 0, 1]);
    let lists = parquet(lists, None, &[vec![pixels, Leaf::Longs(vec![2, 0, 1], vec![1; 3])]])?;
    Ok(vec![
        Whole::new("x.csv", header.into()),
        Whole::new("x.csv", bare.into()),
        Whole::new("x.tsv", header.replace(',', "\t").into()),
        Whole::new("x.csv.gz", gz(header.as_bytes())?),
        Whole::new("x.csv.gz", bare.into()).wrapped(wrap_gz),
        Whole::new(
            "x.txt",
            b"# of R\n\"a\" \"b\" \"kind\"\n\"1\" 1.5 2 \"ape\"\n\"2\" 3 4 \"bee\"\n".to_vec(),
        ),
        Whole::new("x.csv", b"% a note\n,0,1,2\n0,1.5,2,3\n1,4,5,6\n2,7,8,9\n".to_vec()),
        Whole::new("x.parquet", image_parquet(&pictures, &[0, 2, 1], 2)?),
        Whole::new("x.parquet", parquet(numbers, None, &[leaves])?),
        Whole::new("x.parquet", lists),
    ])
}

fn images() -> BoxResult<Vec<Whole>> {
    let side = 24;
    let colour =
        image::RgbImage::from_fn(side, side, |x, y| image::Rgb([x as u8 * 9, y as u8 * 7, (x * y) as u8]));
    let colour = DynamicImage::ImageRgb8(colour);
    let grey = DynamicImage::ImageLuma8(colour.to_luma8());
    let deep = DynamicImage::ImageRgb16(colour.to_rgb16());
    let encoded = |image: &DynamicImage, format: ImageFormat| -> BoxResult<Vec<u8>> {
        let mut bytes = Cursor::new(Vec::new());
        image.write_to(&mut bytes, format)?;
        Ok(bytes.into_inner())
    };
    let folder =
        |name: &str, bytes: Vec<u8>| Whole::new(&format!("images/{name}"), bytes).opened_by("images");
    let palette = png_of_palette(&[9, 8, 7, 255, 0, 5])?;
    let mut plain = b"P2 3 2 255\n".to_vec();
    plain.write_all(b"1 2 3 4 5 255\n")?;
    let other = encoded(&grey, ImageFormat::Png)?;
    Ok(vec![
        folder("a.png", encoded(&grey, ImageFormat::Png)?),
        folder("a.png", encoded(&grey, ImageFormat::Png)?).wrapped(wrap_png),
        folder("a.png", encoded(&deep, ImageFormat::Png)?).wrapped(wrap_png),
        folder("a.png", palette).wrapped(wrap_png),
        folder("a.jpg", encoded(&grey, ImageFormat::Jpeg)?),
        folder("a.jpg", encoded(&colour, ImageFormat::Jpeg)?),
        folder("a.bmp", encoded(&colour, ImageFormat::Bmp)?),
        folder("a.bmp", encoded(&grey, ImageFormat::Bmp)?),
        folder("a.tiff", encoded(&colour, ImageFormat::Tiff)?),
        folder("a.tif", encoded(&deep, ImageFormat::Tiff)?),
        folder("a.tif", pages::tiff(&[3, 4, 5].map(|x| pages::Page::grey(3, 2, &[x; 6])), false, None)),
        folder("a.webp", encoded(&colour, ImageFormat::WebP)?),
        folder("a.gif", encoded(&colour, ImageFormat::Gif)?),
        folder("a.ppm", encoded(&colour, ImageFormat::Pnm)?),
        folder("a.pgm", plain),
        Whole::new("images/metadata.csv", b"file_name,label\na.png,ape\nb/c.png,bee\n".to_vec())
            .with("images/a.png", other.clone())
            .with("images/b/c.png", other.clone())
            .opened_by("images"),
        Whole::new(
            "images/metadata.jsonl",
            b"{\"file_name\": \"a.png\", \"label\": 1}\n{\"file_name\": \"b/c.png\", \"label\": 0}\n"
                .to_vec(),
        )
        .with("images/a.png", other.clone())
        .with("images/b/c.png", other.clone())
        .opened_by("images"),
        folder("train/cat/a.png", other.clone()).wrapped(wrap_png).with("images/train/ape/b.png", other),
    ])
}
