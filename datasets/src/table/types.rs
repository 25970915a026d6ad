//! What a column holds by its types, and how its numbers are stored.
use ::parquet::basic::{ConvertedType, LogicalType, Type as Physical};
use ::parquet::schema::types::ColumnDescriptor;

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Encoded images.
    Image,
    /// Lists of numbers; `bytes` when they are unsigned and of 8 bits.
    Vector { bytes: bool },
    /// One number a row.
    Number,
    /// One text a row.
    Text,
    /// One date or time a row.
    Time,
    /// What cannot be read here.
    Other,
}

/// How numbers are stored, beside their physical type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numeric {
    /// As the physical type says, whole.
    Plain,
    /// As the physical type says, of 32 or 64 bits.
    Float,
    /// Whole numbers without a sign.
    Unsigned,
    /// Whole numbers of this many decimals; in bytes the highest first, in two's complement.
    Decimal(i32),
    /// Floats of 16 bits, the lowest byte first.
    Half,
}

impl Numeric {
    /// A decimal number, by its digits.
    pub(super) fn scaled(self, digits: f64) -> f64 {
        match self {
            Self::Decimal(scale) => digits / 10f64.powi(scale),
            _ => digits,
        }
    }

    /// A number that is stored in bytes.
    pub(super) fn of_bytes(self, bytes: &[u8]) -> f64 {
        match (self, bytes) {
            (Self::Half, &[low, high]) => half::f16::from_le_bytes([low, high]).to_f64(),
            (Self::Decimal(_), [first, ..]) => {
                let negative = first & 0x80 != 0;
                // Of a negative number what is missing to -1, so that high bytes without digits are
                // 0.
                let size =
                    bytes.iter().fold(0., |size, &b| 256. * size + f64::from(if negative { !b } else { b }));
                self.scaled(if negative { -size - 1. } else { size })
            }
            _ => f64::NAN,
        }
    }
}

/// The logical type; files that have none say it by the older converted type.
pub(super) fn numeric_of(leaf: &ColumnDescriptor) -> Numeric {
    if matches!(leaf.physical_type(), Physical::FLOAT | Physical::DOUBLE) {
        return Numeric::Float;
    }
    match (leaf.logical_type_ref(), leaf.converted_type()) {
        (Some(LogicalType::Decimal(decimal)), _) => Numeric::Decimal(decimal.scale),
        (Some(LogicalType::Float16), _) => Numeric::Half,
        (Some(LogicalType::Integer(integer)), _) if !integer.is_signed => Numeric::Unsigned,
        (_, ConvertedType::DECIMAL) => Numeric::Decimal(leaf.type_scale()),
        (
            _,
            ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 | ConvertedType::UINT_64,
        ) => Numeric::Unsigned,
        _ => Numeric::Plain,
    }
}

pub(super) fn kind_of(leaf: &ColumnDescriptor) -> Kind {
    let (logical, converted) = (leaf.logical_type_ref(), leaf.converted_type());
    let text = matches!(logical, Some(LogicalType::String | LogicalType::Enum | LogicalType::Json))
        || matches!(converted, ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON);
    let time = leaf.physical_type() == Physical::INT96
        || matches!(logical, Some(LogicalType::Date | LogicalType::Time(_) | LogicalType::Timestamp(_)))
        || matches!(
            converted,
            ConvertedType::DATE
                | ConvertedType::TIME_MILLIS
                | ConvertedType::TIME_MICROS
                | ConvertedType::TIMESTAMP_MILLIS
                | ConvertedType::TIMESTAMP_MICROS
        );
    let in_bytes = matches!(numeric_of(leaf), Numeric::Decimal(_) | Numeric::Half);
    let number = match leaf.physical_type() {
        Physical::BOOLEAN | Physical::FLOAT | Physical::DOUBLE | Physical::INT32 | Physical::INT64 => true,
        Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY => in_bytes,
        // What was once a timestamp.
        Physical::INT96 => false,
    };
    let whole_bytes = matches!(logical, Some(LogicalType::Integer(integer)) if !integer.is_signed && integer.bit_width == 8)
        || converted == ConvertedType::UINT_8;
    match leaf.physical_type() {
        _ if time => {
            if leaf.max_rep_level() == 0 {
                Kind::Time
            } else {
                Kind::Other
            }
        }
        // A column without a value in any row.
        _ if matches!(logical, Some(LogicalType::Unknown)) => Kind::Other,
        _ if number && leaf.max_rep_level() == 0 => Kind::Number,
        _ if number => Kind::Vector { bytes: whole_bytes },
        Physical::BYTE_ARRAY if leaf.max_rep_level() == 0 => {
            if text {
                Kind::Text
            } else {
                Kind::Image
            }
        }
        _ => Kind::Other,
    }
}
