use super::{message, numbered};
use chandlery_datasets::patches::{Image, ImageSet, PatchSampler};
use chandlery_datasets::{Colour, DataOptions, Dataset, ImageShape, Result, RowType, Split};
use image::{GrayImage, Luma, Rgb, RgbImage};
use std::path::Path;

fn grey(height: u32, width: u32) -> GrayImage {
    GrayImage::from_fn(width, height, |x, y| Luma([(7 * y + 3 * x) as u8]))
}

fn colour(height: u32, width: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| Rgb([(40 * x) as u8, (50 * y) as u8, (x * y) as u8]))
}

fn in_folder(test: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    test(folder.path())
}

#[test]
fn a_folder_gives_images_of_any_sizes_in_the_order_of_their_paths() -> Result<()> {
    in_folder(|folder| {
        std::fs::create_dir_all(folder.join("b/deep")).unwrap();
        std::fs::write(folder.join("README.txt"), "no image").unwrap();
        std::fs::write(folder.join(".hidden.png"), "no image").unwrap();
        grey(9, 5).save(folder.join("c.PNG")).unwrap();
        grey(6, 13).save(folder.join("b/deep/z.bmp")).unwrap();
        colour(7, 6).save(folder.join("a.png")).unwrap();

        let set = ImageSet::from_folder(folder, Colour::Grey)?;
        let found: Vec<_> = set.images().iter().map(|i| (i.name(), i.height(), i.width())).collect();
        let nested = Path::new("b").join("deep").join("z.bmp").display().to_string();
        assert_eq!(found, [("a.png", 7, 6), (&nested, 6, 13), ("c.PNG", 9, 5)]);
        assert_eq!(set.row_type(), RowType::U8);
        let pixel = set.images()[2].to_f32()[4 * 5 + 3];
        assert_eq!(pixel, (7. * 4. + 3. * 3.) / 255.);
        // The images of one size or not, patches of one size come out.
        assert_eq!(PatchSampler::new(set, 5, 10, 0)?.draw(0..10, &candle::Device::Cpu)?.dims(), [10, 25]);

        let opened = ImageSet::open(&folder.display().to_string(), &DataOptions::default())?;
        assert_eq!(opened.images().len(), 3);
        let one = ImageSet::open(&folder.join("c.PNG").display().to_string(), &DataOptions::default())?;
        assert_eq!((one.images().len(), one.images()[0].height()), (1, 9));
        Ok(())
    })
}

#[test]
fn colour_becomes_the_same_grey_from_a_file_and_from_a_data_set() -> Result<()> {
    in_folder(|folder| {
        let image = colour(5, 6);
        image.save(folder.join("a.png")).unwrap();
        let from_file = ImageSet::from_folder(folder, Colour::Grey)?;

        let planes: Vec<u8> = (0..3).flat_map(|c| image.pixels().map(move |p| p.0[c])).collect();
        let shape = ImageShape { height: 5, width: 6, channels: 3 };
        let dataset = |split: Split| Dataset::new("planes", split.with_image(Some(shape))?, None, None);
        let from_bytes =
            ImageSet::from_dataset(&dataset(Split::from_u8(planes.clone(), 90, None)?)?, Colour::Grey)?;
        assert_eq!(from_bytes.images()[0].to_f32(), from_file.images()[0].to_f32());
        assert_eq!(from_bytes.images()[0].name(), "row 0");

        let floats = planes.iter().map(|&p| f32::from(p) / 255.).collect();
        let from_floats =
            ImageSet::from_dataset(&dataset(Split::from_f32(floats, 90, None)?)?, Colour::Grey)?;
        assert_eq!(from_floats.row_type(), RowType::F32);
        for (float, byte) in from_floats.images()[0].to_f32().iter().zip(from_bytes.images()[0].to_f32()) {
            // Bytes are rounded.
            assert!((float - byte).abs() < 0.501 / 255., "{float} {byte}");
        }
        Ok(())
    })
}

#[test]
fn colour_stays_colour_where_it_was_asked_for() -> Result<()> {
    in_folder(|folder| {
        let image = colour(5, 6);
        image.save(folder.join("a.png")).unwrap();
        grey(5, 6).save(folder.join("b.png")).unwrap();
        let planes: Vec<f32> =
            (0..3).flat_map(|c| image.pixels().map(move |p| f32::from(p.0[c]) / 255.)).collect();
        let options = DataOptions { colour: Colour::Rgb, ..DataOptions::default() };
        let set = ImageSet::open(&folder.display().to_string(), &options)?;
        assert_eq!((set.channels(), set.images()[0].to_f32()), (3, planes));
        // Grey in colour is three planes alike.
        let pixels = set.images()[1].to_f32();
        assert_eq!((&pixels[..30], &pixels[30..60]), (&pixels[60..], &pixels[60..]));
        Ok(())
    })
}

#[test]
fn images_of_other_channels_are_refused() -> Result<()> {
    let shape = ImageShape { channels: 3, ..ImageShape::grey(1, 2) };
    let colour = Image::from_u8("colour", shape, vec![0; 6])?;
    let grey = Image::from_u8("grey", ImageShape::grey(1, 2), vec![0; 2])?;
    assert_eq!(
        message(ImageSet::new("both", vec![colour, grey])),
        "both: image colour has 3 channels, image grey has 1; give images that are all grey or all in colour"
    );
    Ok(())
}

#[test]
fn grey_rows_become_images_in_their_order() -> Result<()> {
    let split = Split::from_u8((0..60).collect(), 20, None)?.with_image(Some(ImageShape::grey(4, 5)))?;
    let dataset = Dataset::new("rows", split, None, None)?;
    let set = ImageSet::from_dataset(&dataset, Colour::Grey)?;
    let firsts: Vec<_> = set.images().iter().map(|i| (i.to_f32()[0] * 255.).round()).collect();
    assert_eq!(firsts, [0., 20., 40.]);
    assert_eq!((set.images()[2].height(), set.images()[2].width()), (4, 5));
    Ok(())
}

#[test]
fn mixed_types_become_floats() -> Result<()> {
    let bytes = Image::from_u8("bytes", ImageShape::grey(1, 2), vec![51, 255])?;
    let set = ImageSet::new("mixed", vec![bytes, numbered("floats", 2, 1, 3)])?;
    assert_eq!(set.row_type(), RowType::F32);
    assert_eq!(set.images()[0].to_f32(), [0.2, 1.]);
    assert_eq!(set.images()[1].to_f32(), [3., 4.]);
    Ok(())
}

#[test]
fn natural_images_open_by_name() -> Result<()> {
    let set = ImageSet::open("natural-images", &DataOptions::default())?;
    assert_eq!(set.images().len(), 4);
    Ok(())
}

#[test]
fn natural_images_in_colour_have_the_same_plane_three_times() -> Result<()> {
    let open = |colour| ImageSet::open("natural-images", &DataOptions { colour, ..DataOptions::default() });
    let (grey, rgb) = (open(Colour::Grey)?, open(Colour::Rgb)?);
    assert_eq!((grey.channels(), rgb.channels()), (1, 3));
    for (grey, rgb) in grey.images().iter().zip(rgb.images()) {
        assert_eq!(rgb.to_f32(), grey.to_f32().repeat(3), "{}", rgb.name());
    }
    Ok(())
}

#[test]
fn image_sets_say_what_is_wrong() -> Result<()> {
    in_folder(|folder| {
        let at = folder.display();
        assert_eq!(
            message(ImageSet::from_folder(folder, Colour::Grey)),
            format!(
                "{at}: holds no image files; give a folder with files that end in one of: \
                 png, jpg, jpeg, bmp, tif, tiff, webp, gif, pgm, ppm, pbm, pnm"
            )
        );
        let missing = folder.join("nowhere");
        assert_eq!(
            message(ImageSet::from_folder(&missing, Colour::Grey)),
            format!("{}: no such file or folder; check the path", missing.display())
        );
        let broken = folder.join("broken.png");
        std::fs::write(&broken, b"\x89PNG\r\n\x1a\nand then nothing").unwrap();
        let said = message(ImageSet::from_folder(folder, Colour::Grey));
        assert!(
            said.starts_with(&format!("{}: cannot be decoded as an image: ", broken.display())),
            "{said}"
        );
        assert!(said.ends_with("; replace or remove it") && !said.contains('\n'), "{said}");
        Ok(())
    })?;
    assert_eq!(message(ImageSet::new("none", vec![])), "none: holds no images; give at least one");
    assert_eq!(
        message(Image::from_u8("a", ImageShape::grey(2, 3), vec![0; 5])),
        "Image: pixels must number height * width * channels and at least 1, got 5 for 2x3x1 (a)"
    );
    assert_eq!(
        message(Image::from_u8("a", ImageShape::grey(0, 3), vec![])),
        "Image: pixels must number height * width * channels and at least 1, got 0 for 0x3x1 (a)"
    );
    assert_eq!(
        message(Image::from_f32("a", ImageShape::grey(2, 2), vec![0., 1., 2., f32::NAN])),
        "image a: row 1, column 1 is NaN; replace or drop such values and save again"
    );
    let vectors = Dataset::new("vectors", Split::from_u8(vec![0; 12], 6, None)?, None, None)?;
    assert_eq!(
        message(ImageSet::from_dataset(&vectors, Colour::Grey)),
        "vectors: its rows are not images, so that there are no patches in them; give a data set of images"
    );
    let shape = ImageShape { height: 1, width: 3, channels: 2 };
    let split = Split::from_u8(vec![0; 12], 6, None)?.with_image(Some(shape))?;
    let planes = Dataset::new("planes", split, None, None)?;
    assert_eq!(
        message(ImageSet::from_dataset(&planes, Colour::Grey)),
        "planes: images have 2 planes; give images of one plane (grey) or three (red, green, blue)"
    );
    Ok(())
}
