//! What the tests of this folder share: files made on the spot, and the text of an error.
#![allow(dead_code)] // Each test file uses some of it.
use chandlery_datasets::{DataOptions, Dataset, Source, open};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::{ByteArray, FixedLenByteArray};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// What a test returns: the first error ends it.
pub type TestResult = Result<(), Box<dyn std::error::Error>>;

/// Opens a path with default options.
pub fn open_path(path: &Path) -> chandlery_datasets::Result<Dataset> {
    open_with(path, DataOptions::default())
}

/// Opens a path.
pub fn open_with(path: &Path, options: DataOptions) -> chandlery_datasets::Result<Dataset> {
    open(&path.display().to_string(), &options)
}

/// The message of an error, with the test's own folder written as `DIR`.
#[track_caller]
pub fn message<T: std::fmt::Debug, E: std::fmt::Display>(result: Result<T, E>, folder: &Path) -> String {
    match result {
        Ok(value) => panic!("accepted: {value:?}"),
        Err(e) => {
            let text = e.to_string();
            assert!(!text.contains('\n'), "more than one line: {text}");
            text.replace(&folder.display().to_string(), "DIR")
        }
    }
}

/// Why labels were left out, with the test's own folder written as `DIR`.
#[track_caller]
pub fn left_out<E: std::fmt::Display>(data: Result<Dataset, E>, folder: &Path) -> String {
    let data = data.unwrap_or_else(|e| panic!("refused: {e}"));
    assert!(data.train.labels.is_none(), "labels were kept");
    let why = data.left_out_labels.unwrap_or_else(|| panic!("labels were not left out"));
    assert!(data.notes.iter().any(|note| note.contains(&why)), "no note of {why}: {:?}", data.notes);
    why.replace(&folder.display().to_string(), "DIR")
}

/// All rows of a source, as bytes.
pub fn all_rows(rows: &dyn Source) -> chandlery_datasets::Result<Vec<u8>> {
    let indices: Vec<u32> = (0..rows.n_samples() as u32).collect();
    let mut out = vec![0; indices.len() * rows.n_features() * rows.dtype().size_in_bytes()];
    rows.read_rows(&indices, &mut out)?;
    Ok(out)
}

/// An idx file: magic number, sizes, values.
pub fn idx(magic: u32, sizes: &[u32], values: &[u8]) -> Vec<u8> {
    let mut bytes = magic.to_be_bytes().to_vec();
    for size in sizes {
        bytes.extend(size.to_be_bytes());
    }
    bytes.extend(values);
    bytes
}

/// Gzipped.
pub fn gz(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// A `.npy` file of version 1.0, C order.
pub fn npy(descr: &str, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let shape: String = shape.iter().map(|d| format!("{d},")).collect();
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    npy_with_header(&header, data)
}

/// A `.npy` file of version 1.0 with this header.
pub fn npy_with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut header = header.to_owned();
    while !(10 + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

/// Texts as NumPy stores them in `<U…` of so many characters.
pub fn utf_32(texts: &[&str], width: usize) -> Vec<u8> {
    let padded = |text: &str| text.chars().chain(std::iter::repeat('\0')).take(width).collect::<Vec<char>>();
    texts.iter().flat_map(|text| padded(text)).flat_map(|c| u32::from(c).to_le_bytes()).collect()
}

/// Floats as bytes.
pub fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

/// A grey PNG.
pub fn png(height: u32, width: u32, pixels: &[u8]) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let image = image::GrayImage::from_raw(width, height, pixels.to_vec()).ok_or("sizes")?;
    encode(image::DynamicImage::ImageLuma8(image))
}

/// A colour PNG; `pixels` are interleaved.
pub fn png_rgb(height: u32, width: u32, pixels: &[u8]) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let image = image::RgbImage::from_raw(width, height, pixels.to_vec()).ok_or("sizes")?;
    encode(image::DynamicImage::ImageRgb8(image))
}

fn encode(image: image::DynamicImage) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    image.write_to(&mut bytes, image::ImageFormat::Png)?;
    Ok(bytes.into_inner())
}

/// One leaf of a parquet file: values, definition levels, repetition levels.
pub enum Leaf {
    Bytes(Vec<Vec<u8>>, Vec<i16>),
    Fixed(Vec<Vec<u8>>),
    Longs(Vec<i64>, Vec<i16>),
    Ints(Vec<i32>, Vec<i16>, Vec<i16>),
    Floats(Vec<f32>, Vec<i16>, Vec<i16>),
    Doubles(Vec<f64>),
}

/// A parquet file with one row group for each element of `groups`, which holds the leaves in the
/// schema's order.
pub fn parquet(
    schema: &str,
    metadata: Option<&str>,
    groups: &[Vec<Leaf>],
) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let metadata = metadata.map(|text| vec![KeyValue::new("huggingface".to_owned(), text.to_owned())]);
    parquet_with(WriterProperties::builder().set_key_value_metadata(metadata).build(), schema, groups)
}

/// [`parquet`] with the writer's properties.
pub fn parquet_with(
    properties: WriterProperties,
    schema: &str,
    groups: &[Vec<Leaf>],
) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let schema = Arc::new(parse_message_type(schema)?);
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties))?;
    for leaves in groups {
        let mut group = writer.next_row_group()?;
        for leaf in leaves {
            let mut column = group.next_column()?.ok_or("too many leaves")?;
            match (leaf, column.untyped()) {
                (Leaf::Bytes(values, def), ColumnWriter::ByteArrayColumnWriter(w)) => {
                    let values: Vec<ByteArray> = values.iter().map(|v| ByteArray::from(v.clone())).collect();
                    w.write_batch(&values, levels(def), None)?;
                }
                (Leaf::Fixed(values), ColumnWriter::FixedLenByteArrayColumnWriter(w)) => {
                    let values: Vec<_> =
                        values.iter().map(|v| FixedLenByteArray::from(ByteArray::from(v.clone()))).collect();
                    w.write_batch(&values, None, None)?;
                }
                (Leaf::Longs(values, def), ColumnWriter::Int64ColumnWriter(w)) => {
                    w.write_batch(values, levels(def), None)?;
                }
                (Leaf::Ints(values, def, rep), ColumnWriter::Int32ColumnWriter(w)) => {
                    w.write_batch(values, levels(def), levels(rep))?;
                }
                (Leaf::Floats(values, def, rep), ColumnWriter::FloatColumnWriter(w)) => {
                    w.write_batch(values, levels(def), levels(rep))?;
                }
                (Leaf::Doubles(values), ColumnWriter::DoubleColumnWriter(w)) => {
                    w.write_batch(values, None, None)?;
                }
                _ => return Err("leaf and schema differ".into()),
            }
            column.close()?;
        }
        group.close()?;
    }
    Ok(writer.into_inner()?)
}

fn levels(levels: &[i16]) -> Option<&[i16]> {
    (!levels.is_empty()).then_some(levels)
}

/// The hub's schema of labelled images.
pub const IMAGES: &str = "message schema {
    optional group image { optional binary bytes; optional binary path (UTF8); }
    optional int64 label;
}";

/// The hub's metadata for [`IMAGES`].
pub const IMAGES_METADATA: &str = r#"{"info": {"features": {"image": {"_type": "Image"},
    "label": {"names": ["zero", "one", "two"], "_type": "ClassLabel"}}}}"#;

/// A file as the hub makes it of labelled images, `per_group` of them in a row group.
pub fn image_parquet(
    images: &[Vec<u8>],
    labels: &[i64],
    per_group: usize,
) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let groups: Vec<Vec<Leaf>> = images
        .chunks(per_group)
        .zip(labels.chunks(per_group))
        .map(|(images, labels)| {
            let n = images.len();
            let paths = vec![b"x.png".to_vec(); n];
            vec![
                Leaf::Bytes(images.to_vec(), vec![2; n]),
                Leaf::Bytes(paths, vec![2; n]),
                Leaf::Longs(labels.to_vec(), vec![1; n]),
            ]
        })
        .collect();
    parquet(IMAGES, Some(IMAGES_METADATA), &groups)
}

/// A PNG file of these chunks, with their lengths and checksums.
pub fn png_of_chunks(chunks: &[(&[u8; 4], Vec<u8>)]) -> Vec<u8> {
    let mut bytes = b"\x89PNG\r\n\x1a\n".to_vec();
    for (kind, data) in chunks {
        let mut checksum = flate2::Crc::new();
        checksum.update(*kind);
        checksum.update(data);
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(*kind);
        bytes.extend(data);
        bytes.extend(checksum.sum().to_be_bytes());
    }
    bytes
}

/// A PNG of 2×2 places in a palette of these bytes, three for each colour.
pub fn png_of_palette(palette: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut pixels = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    pixels.write_all(&[0, 0, 1, 0, 1, 0])?;
    Ok(png_of_chunks(&[
        (b"IHDR", [&2u32.to_be_bytes()[..], &2u32.to_be_bytes(), &[8, 3, 0, 0, 0]].concat()),
        (b"PLTE", palette.to_vec()),
        (b"IDAT", pixels.finish()?),
        (b"IEND", vec![]),
    ]))
}

/// A `.npz` archive of these `.npy` files, stored or deflated.
pub fn npz(arrays: &[(&str, Vec<u8>)], deflated: bool) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let method = if deflated { zip::CompressionMethod::Deflated } else { zip::CompressionMethod::Stored };
    let options = zip::write::SimpleFileOptions::default().compression_method(method);
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in arrays {
        writer.start_file(format!("{name}.npy"), options)?;
        writer.write_all(bytes)?;
    }
    Ok(writer.finish()?.into_inner())
}
