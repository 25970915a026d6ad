//! Column pages, with what the `parquet` crate takes for granted checked first.
//!
//! Version 60 panics where a damaged file says that a column lies at a negative offset, and where
//! pages refer to a dictionary that is not there. Here both are errors.
use ::parquet::basic::Encoding;
use ::parquet::column::page::{Page, PageMetadata, PageReader};
use ::parquet::column::reader::{ColumnReader, get_column_reader};
use ::parquet::errors::{ParquetError, Result};
use ::parquet::file::reader::RowGroupReader;

/// A reader of leaf `leaf` of a row group.
pub(crate) fn open_leaf(group: &dyn RowGroupReader, leaf: usize) -> Result<ColumnReader> {
    let chunk = group.metadata().column(leaf);
    let start = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
    if start < 0 || chunk.compressed_size() < 0 {
        return Err(ParquetError::General("the footer gives a column a negative place or size".to_owned()));
    }
    let pages = CheckedPages { inner: group.get_column_page_reader(leaf)?, has_dictionary: false };
    let column = group.metadata().schema_descr().column(leaf);
    Ok(get_column_reader(column, Box::new(pages)))
}

struct CheckedPages {
    inner: Box<dyn PageReader>,
    has_dictionary: bool,
}

impl CheckedPages {
    fn check(&mut self, page: Option<Page>) -> Result<Option<Page>> {
        let needs_dictionary = |encoding: &Encoding| {
            #[allow(deprecated)] // Old files still say PLAIN_DICTIONARY.
            let old = *encoding == Encoding::PLAIN_DICTIONARY;
            old || *encoding == Encoding::RLE_DICTIONARY
        };
        match &page {
            Some(Page::DictionaryPage { .. }) => self.has_dictionary = true,
            Some(Page::DataPage { encoding, .. } | Page::DataPageV2 { encoding, .. })
                if needs_dictionary(encoding) && !self.has_dictionary =>
            {
                return Err(ParquetError::General(
                    "a page refers to a dictionary that is not there".to_owned(),
                ));
            }
            _ => {}
        }
        Ok(page)
    }
}

impl Iterator for CheckedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.inner.get_next_page()?;
        self.check(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.inner.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.inner.at_record_boundary()
    }
}
