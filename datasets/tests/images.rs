//! Images as people have them: pages, deep values, turned by their notes, labelled by a table
//! beside them, as arrays, in folders with loops.
#![cfg(feature = "image")]
#[path = "common/tiff.rs"]
mod pages;
use crate::common::*;
use chandlery_datasets::patches::ImageSet;
use chandlery_datasets::{Colour, DataOptions, Dataset, ImageShape, RowType};
use image::{DynamicImage, ImageBuffer, ImageFormat, Luma, Rgb};
use pages::{Page, tiff};
use std::io::Cursor;
use std::path::Path;

type BoxResult<T> = Result<T, Box<dyn std::error::Error>>;

fn encoded(image: impl Into<DynamicImage>, format: ImageFormat) -> BoxResult<Vec<u8>> {
    let mut bytes = Cursor::new(Vec::new());
    image.into().write_to(&mut bytes, format)?;
    Ok(bytes.into_inner())
}

fn folder(files: &[(&str, Vec<u8>)]) -> BoxResult<tempfile::TempDir> {
    let dir = tempfile::tempdir()?;
    for (name, bytes) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().ok_or("no parent")?)?;
        std::fs::write(path, bytes)?;
    }
    Ok(dir)
}

fn floats(data: &Dataset) -> BoxResult<Vec<f32>> {
    assert_eq!(data.train.row_type(), RowType::F32);
    Ok(bytemuck::pod_collect_to_vec(&all_rows(data.train.rows.as_ref())?))
}

#[test]
fn each_page_of_a_tiff_is_an_image_with_the_label_of_its_file() -> TestResult {
    let of = |first: u8| Page::grey(3, 2, &[first, 1, 2, 3, 4, 5]);
    let small = Page { subfile: 1, ..Page::grey(1, 1, &[0]) };
    for big in [false, true] {
        let dir = folder(&[
            ("a/x.tif", tiff(&[of(10), small_like(&small), of(20), of(30)], big, None)),
            ("b/y.TIFF", tiff(&[of(40)], big, None)),
        ])?;
        let data = open_path(dir.path())?;
        assert_eq!(data.image(), Some(ImageShape::grey(2, 3)));
        let rows = all_rows(data.train.rows.as_ref())?;
        assert_eq!(
            rows.iter().step_by(6).copied().collect::<Vec<_>>(),
            [10, 20, 30, 40],
            "big-endian: {big}"
        );
        assert_eq!(rows[1..6], [1, 2, 3, 4, 5]);
        assert_eq!(data.train.labels.as_deref(), Some(&[0, 0, 0, 1][..]));
        let options = DataOptions { max_rows: Some(2), ..DataOptions::default() };
        assert_eq!(open_with(dir.path(), options)?.train.labels.as_deref(), Some(&[0, 0][..]));
        let set = ImageSet::from_folder(dir.path(), Colour::Grey)?;
        let names: Vec<&str> = set.images().iter().map(|image| image.name()).collect();
        assert_eq!(names, ["a/x.tif, page 1", "a/x.tif, page 2", "a/x.tif, page 3", "b/y.TIFF"]);
    }
    // A page of another size, and one that leads back to the first.
    let dir = folder(&[("x.tif", tiff(&[of(10), Page::grey(2, 3, &[0; 6])], false, None))])?;
    assert_eq!(
        message(open_path(dir.path()), dir.path()),
        "DIR/x.tif, page 2: is 3x2x1 but DIR/x.tif, page 1 is 2x3x1 (height x width x channels); make all images of a data set the same, \
         or draw patches from them instead"
    );
    let dir = folder(&[("x.tif", tiff(&[of(10), of(20)], false, Some(0)))])?;
    assert_eq!(open_path(dir.path())?.train.n_samples(), 2);
    Ok(())
}

#[test]
fn a_tiff_of_grey_floats_is_read_as_it_is_and_a_damaged_one_refused() -> TestResult {
    use ::tiff::encoder::{TiffEncoder, colortype::Gray32Float};
    let values = [0.5f32, -2., 1e6, 0., 0.25, 3.];
    let mut file = std::io::Cursor::new(Vec::new());
    let mut encoder = TiffEncoder::new(&mut file)?;
    encoder.write_image::<Gray32Float>(3, 2, &values)?;
    encoder.write_image::<Gray32Float>(3, 2, &values.map(|x| -x))?;
    let file = file.into_inner();
    let dir = folder(&[("x.tif", file.clone())])?;
    let data = open_path(dir.path())?;
    assert_eq!((data.image(), data.train.n_samples()), (Some(ImageShape::grey(2, 3)), 2));
    assert_eq!(all_rows(data.train.rows.as_ref())?, f32s(&[values, values.map(|x| -x)].concat()));
    let rgb = DataOptions { colour: Colour::Rgb, max_rows: Some(1), ..DataOptions::default() };
    assert_eq!(all_rows(open_with(dir.path(), rgb)?.train.rows.as_ref())?, f32s(&values.repeat(3)));
    let dir = folder(&[("x.tif", file[..file.len() / 2].to_vec())])?;
    assert!(message(open_path(dir.path()), dir.path()).contains("cannot be decoded as an image"));
    Ok(())
}

fn small_like(page: &Page) -> Page {
    Page { subfile: page.subfile, ..Page::grey(page.width, page.height, &page.pixels) }
}

#[test]
fn sixteen_bits_stay_and_bytes_beside_them_become_floats() -> TestResult {
    let deep = ImageBuffer::<Luma<u16>, _>::from_vec(2, 1, vec![258u16, 65_535]).ok_or("size")?;
    let flat = ImageBuffer::<Luma<u8>, _>::from_vec(2, 1, vec![51u8, 255]).ok_or("size")?;
    let png = encoded(deep.clone(), ImageFormat::Png)?;
    for (memory_bytes, flat_first) in [(None, true), (Some(1), true), (None, false)] {
        let names = if flat_first { ["b.tif", "a.png"] } else { ["a.tif", "b.png"] };
        let dir = folder(&[
            (names[0], encoded(deep.clone(), ImageFormat::Tiff)?),
            (names[1], encoded(flat.clone(), ImageFormat::Png)?),
            ("c.png", png.clone()),
        ])?;
        let options = DataOptions { memory_bytes, ..DataOptions::default() };
        let rows = floats(&open_with(dir.path(), options)?)?;
        let (of_deep, of_flat) = ([258. / 65_535., 1.], [0.2, 1.]);
        let want = if flat_first { [of_flat, of_deep, of_deep] } else { [of_deep, of_flat, of_deep] };
        assert_eq!(rows, want.concat(), "{memory_bytes:?} {flat_first}");
        let set = ImageSet::from_folder(dir.path(), Colour::Grey)?;
        assert_eq!(set.images().iter().flat_map(|image| image.to_f32()).collect::<Vec<_>>(), want.concat());
    }
    // Planes of colour, and what is grey of them.
    let colour = ImageBuffer::<Rgb<u16>, _>::from_vec(2, 1, vec![1000u16, 2000, 3000, 4000, 5000, 6000])
        .ok_or("size")?;
    let dir = folder(&[("a.png", encoded(colour, ImageFormat::Png)?)])?;
    let rows = floats(&open_path(dir.path())?)?;
    let want = [1000., 4000., 2000., 5000., 3000., 6000.].map(|x: f32| x / 65_535.);
    assert_eq!(rows, want);
    let grey =
        floats(&open_with(dir.path(), DataOptions { colour: Colour::Grey, ..DataOptions::default() })?)?;
    for (got, want) in grey.iter().zip([1859.6, 4859.6]) {
        assert!((got * 65_535. - want).abs() < 1., "{grey:?}");
    }
    Ok(())
}

/// A JPEG with a note of its orientation.
fn with_exif(jpeg: &[u8], orientation: u8) -> Vec<u8> {
    let tiff = [
        b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0".as_slice(),
        &[orientation, 0, 0, 0],
        &[0; 4],
    ]
    .concat();
    let length = (tiff.len() + 2) as u16;
    [&jpeg[..2], &[0xff, 0xe1], &length.to_be_bytes(), &tiff, &jpeg[2..]].concat()
}

#[test]
fn images_are_turned_as_their_notes_say() -> TestResult {
    // Light above, dark below; blocks of a JPEG are 8 pixels wide.
    let upright = image::GrayImage::from_fn(24, 16, |_, y| Luma([if y < 8 { 250 } else { 5 }]));
    let jpeg = encoded(upright, ImageFormat::Jpeg)?;
    for (orientation, shape, dark) in [
        (1, ImageShape::grey(16, 24), (12, 20)),
        (3, ImageShape::grey(16, 24), (3, 3)),
        // A quarter to the right: what was above is right.
        (6, ImageShape::grey(24, 16), (12, 3)),
        (8, ImageShape::grey(24, 16), (12, 12)),
    ] {
        let dir = folder(&[("a.jpg", with_exif(&jpeg, orientation))])?;
        let data = open_path(dir.path())?;
        assert_eq!(data.image(), Some(shape), "{orientation}");
        let rows = all_rows(data.train.rows.as_ref())?;
        let (y, x) = dark;
        let (y, x) = if orientation == 1 { (12, x) } else { (y, x) };
        assert!(rows[y * shape.width + x] < 30, "{orientation}: {}", rows[y * shape.width + x]);
        let picture = chandlery_datasets::decode_image(&dir.path().join("a.jpg"))?;
        assert_eq!((picture.height() as usize, picture.width() as usize), (shape.height, shape.width));
    }
    let page = Page { orientation: 6, ..Page::grey(3, 2, &[1, 2, 3, 4, 5, 6]) };
    let dir = folder(&[("a.tif", tiff(&[page], false, None))])?;
    let data = open_path(dir.path())?;
    assert_eq!(data.image(), Some(ImageShape::grey(3, 2)));
    assert_eq!(all_rows(data.train.rows.as_ref())?, [4, 1, 5, 2, 6, 3]);
    // Turned images have the shape of upright ones before any is decoded.
    let dir = folder(&[("a.jpg", with_exif(&jpeg, 6)), ("b.jpg", jpeg.clone())])?;
    assert!(
        message(open_path(dir.path()), dir.path())
            .starts_with("DIR/b.jpg: is 16x24x1 but DIR/a.jpg is 24x16x1")
    );
    Ok(())
}

#[test]
fn a_table_beside_images_gives_their_labels() -> TestResult {
    let grey = |x: u8| png(1, 1, &[x]);
    let files = |metadata: (&'static str, &str)| -> BoxResult<_> {
        folder(&[
            ("b.png", grey(2)?),
            ("a.png", grey(1)?),
            ("more/c.png", grey(3)?),
            (metadata.0, metadata.1.as_bytes().to_vec()),
        ])
    };
    let csv = "file_name,text,label\nmore/c.png,\"x, y\",cat\nb.png,z,dog\na.png,,cat\n";
    let jsonl = "{\"file_name\": \"a.png\", \"label\": \"cat\", \"boxes\": [1, 2]}\n\n{\"file_name\": \"b.png\", \"label\": \"dog\"}\n{\"label\": \"cat\", \"file_name\": \"more/c.png\"}\n";
    for metadata in [("metadata.csv", csv), ("metadata.jsonl", jsonl)] {
        let data = open_path(files(metadata)?.path())?;
        assert_eq!(all_rows(data.train.rows.as_ref())?, [1, 2, 3]);
        assert_eq!(data.train.labels.as_deref(), Some(&[0, 1, 0][..]));
        assert_eq!(data.class_names.as_deref(), Some(&["cat".to_owned(), "dog".to_owned()][..]));
    }
    let numbers = "file_name,age,label\nmore/c.png,7,2\nb.png,8,0\na.png,9,2\n";
    let dir = files(("metadata.csv", numbers))?;
    assert_eq!(open_path(dir.path())?.train.labels.as_deref(), Some(&[2, 0, 2][..]));
    let by_age = DataOptions { labels: Some("age".to_owned()), ..DataOptions::default() };
    assert_eq!(open_with(dir.path(), by_age)?.train.labels.as_deref(), Some(&[9, 8, 7][..]));
    // In the folder of all splits, or in each.
    for of_splits in [true, false] {
        let metadata: &[(&str, &str)] = match of_splits {
            true => &[("metadata.csv", "file_name,label\ntrain/a.png,x\ntrain/b.png,y\ntest/c.png,y\n")],
            false => &[
                ("train/metadata.csv", "file_name,label\na.png,x\nb.png,y\n"),
                ("test/metadata.csv", "file_name,label\nc.png,y\n"),
            ],
        };
        let mut all = vec![("train/a.png", grey(1)?), ("train/b.png", grey(2)?), ("test/c.png", grey(3)?)];
        all.extend(metadata.iter().map(|(name, text)| (*name, text.as_bytes().to_vec())));
        let data = open_path(folder(&all)?.path())?;
        assert_eq!(data.train.labels.as_deref(), Some(&[0, 1][..]));
        assert_eq!(data.test.ok_or("no test")?.labels.as_deref(), Some(&[1][..]));
    }
    // Without labels in it, sub-folders are classes.
    let dir = folder(&[
        ("x/a.png", grey(1)?),
        ("y/b.png", grey(2)?),
        ("metadata.csv", b"file_name,text\nx/a.png,t\n".to_vec()),
    ])?;
    assert_eq!(open_path(dir.path())?.train.labels.as_deref(), Some(&[0, 1][..]));
    for (text, want) in [
        (
            "file_name,label\nb.png,1\na.png,1\n",
            "DIR/more/c.png: has no line in DIR/metadata.csv; add one, or move the image away",
        ),
        (
            "file_name,label\nb.png,1\nd.png,1\n",
            "DIR/metadata.csv: line 3 names 'd.png', which is no file; correct the path",
        ),
        ("file_name,label\nb.png,1\nb.png,1\n", "DIR/metadata.csv: line 3 names the image of line 2"),
        ("name,label\nb.png,1\n", "DIR/metadata.csv: line 2 has no 'file_name'"),
    ] {
        let dir = files(("metadata.csv", text))?;
        let got = message(open_path(dir.path()), dir.path());
        assert!(got.starts_with(want), "{got}");
    }
    Ok(())
}

#[test]
fn arrays_with_channels_last_are_images_as_those_with_channels_first() -> TestResult {
    let dir = tempfile::tempdir()?;
    let at = |name: &str| dir.path().join(name);
    let shape = |channels| Some(ImageShape { height: 2, width: 1, channels });
    let cases: [(&[usize], Vec<u8>, _, &[u8]); 5] = [
        (&[2, 2, 1, 1], vec![1, 2, 3, 4], shape(1), &[1, 2, 3, 4]),
        (&[1, 2, 1, 3], vec![1, 2, 3, 4, 5, 6], shape(3), &[1, 4, 2, 5, 3, 6]),
        (&[1, 2, 1, 4], vec![1, 2, 3, 9, 4, 5, 6, 9], shape(3), &[1, 4, 2, 5, 3, 6]),
        (&[1, 3, 2, 1], vec![1, 2, 3, 4, 5, 6], shape(3), &[1, 2, 3, 4, 5, 6]),
        (&[1, 2, 1, 5], (0..10).collect(), None, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ];
    for (sizes, values, image, want) in cases {
        for descr in ["|u1", "<f4", "<f8"] {
            let bytes: Vec<u8> = match descr {
                "|u1" => values.clone(),
                "<f4" => values.iter().flat_map(|&x| f32::from(x).to_le_bytes()).collect(),
                _ => values.iter().flat_map(|&x| f64::from(x).to_le_bytes()).collect(),
            };
            std::fs::write(at("x.npy"), npy(descr, sizes, &bytes))?;
            let data = open_path(&at("x.npy"))?;
            assert_eq!(data.image(), image, "{sizes:?}");
            let rows = all_rows(data.train.rows.as_ref())?;
            match descr {
                "|u1" => assert_eq!(rows, want),
                _ => assert_eq!(floats(&data)?, want.iter().map(|&x| f32::from(x)).collect::<Vec<_>>()),
            }
        }
        std::fs::write(at("x.npz"), crate::common::npz(&[("x", npy("|u1", sizes, &values))], true)?)?;
        let data = open_path(&at("x.npz"))?;
        assert_eq!((data.image(), all_rows(data.train.rows.as_ref())?), (image, want.to_vec()));
    }
    Ok(())
}

#[test]
fn shapes_are_compared_before_anything_is_decoded() -> TestResult {
    // The pixels of the first are cut off, its header is whole: what is wrong with the shapes is
    // said first.
    let whole = png(30, 30, &[7; 900])?;
    let dir = folder(&[
        ("a.png", whole[..60].to_vec()),
        ("b.png", png(30, 30, &[7; 900])?),
        ("c.png", png(30, 31, &[7; 930])?),
    ])?;
    assert_eq!(
        message(open_path(dir.path()), dir.path()),
        "DIR/c.png: is 30x31x1 but DIR/a.png is 30x30x1 (height x width x channels); make all images of a data set the same, \
         or draw patches from them instead"
    );
    std::fs::remove_file(dir.path().join("c.png"))?;
    assert!(
        message(open_path(dir.path()), dir.path()).starts_with("DIR/a.png: cannot be decoded as an image: ")
    );
    Ok(())
}

#[cfg(unix)]
#[test]
fn links_that_lead_round_in_a_circle_end() -> TestResult {
    let link = |to: &Path, at: &Path| std::os::unix::fs::symlink(to, at);
    let dir = folder(&[
        ("x/a.png", png(1, 1, &[1])?),
        ("x/deep/b.png", png(1, 1, &[2])?),
        ("y/c.png", png(1, 1, &[3])?),
    ])?;
    link(dir.path(), &dir.path().join("x/deep/up"))?;
    link(&dir.path().join("x"), &dir.path().join("x/deep/again"))?;
    link(Path::new("."), &dir.path().join("y/self"))?;
    let data = open_path(dir.path())?;
    assert_eq!(all_rows(data.train.rows.as_ref())?, [1, 2, 3]);
    assert_eq!(data.train.labels.as_deref(), Some(&[0, 0, 1][..]));
    // Images elsewhere, to which a link leads, are read.
    let other = folder(&[("d.png", png(1, 1, &[4])?)])?;
    link(other.path(), &dir.path().join("z"))?;
    assert_eq!(all_rows(open_path(dir.path())?.train.rows.as_ref())?, [1, 2, 3, 4]);
    Ok(())
}
