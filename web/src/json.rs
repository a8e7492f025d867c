//! Reads JSON into the API's types with the browser's parser.
//!
//! `JSON.parse` creates the values, and this module visits them. So the program contains no JSON parser. Types are read directly, without
//! buffers, which saves a tenth of the whole dashboard. For that reason this module does not read serde's tagged or flattened types;
//! [`crate::live`] reads those by hand. Of the untagged ones it reads only words, in the last variant of an enum that keeps words of a
//! newer collector.

use std::fmt;

use js_sys::{Array, JSON, Object, Reflect};
use serde::de::value::{StrDeserializer, StringDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Expected, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use wasm_bindgen::JsValue;

/// Why a value cannot be read.
#[derive(Debug)]
pub(crate) struct Unreadable(String);

/// Parses JSON text. Empty text is read as `null`.
pub(crate) fn parse(text: &str) -> Result<JsValue, Unreadable> {
    if text.is_empty() {
        return Ok(JsValue::NULL);
    }
    JSON::parse(text).map_err(|_| Unreadable("invalid JSON".to_owned()))
}

/// Reads a value of the API.
pub(crate) fn read<T: DeserializeOwned>(value: &JsValue) -> Result<T, Unreadable> {
    T::deserialize(Reader(value.clone()))
}

/// Returns a field of an object; `undefined` if it is missing.
pub(crate) fn field(object: &JsValue, name: &str) -> Result<JsValue, Unreadable> {
    Reflect::get(object, &JsValue::from_str(name)).map_err(|_| wrong("an object"))
}

/// Reads the value of a field.
pub(crate) fn read_field<T: DeserializeOwned>(object: &JsValue, name: &str) -> Result<T, Unreadable> {
    read(&field(object, name)?)
}

/// Returns a value as a list of values.
pub(crate) fn list(value: JsValue) -> Result<Array, Unreadable> {
    if Array::is_array(&value) {
        Ok(value.into())
    } else {
        Err(wrong("a list"))
    }
}

fn wrong(expected: &str) -> Unreadable {
    Unreadable(format!("it is not {expected}"))
}

/// A value to read.
struct Reader(JsValue);

impl Reader {
    fn number(&self) -> Result<f64, Unreadable> {
        self.0.as_f64().ok_or_else(|| wrong("a number"))
    }

    fn text(&self) -> Result<String, Unreadable> {
        self.0.as_string().ok_or_else(|| wrong("a string"))
    }

    fn is_nothing(&self) -> bool {
        self.0.is_null() || self.0.is_undefined()
    }

    fn items(self) -> Result<Items, Unreadable> {
        let array = list(self.0)?;
        Ok(Items { array, at: 0 })
    }
}

/// Numbers are the browser's; integers are exact up to 2^53, which is more than any value of the API.
macro_rules! numbers {
    ($($read:ident => $visit:ident as $kind:ty),*) => {$(
        fn $read<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the collector writes no fraction into an integer field")]
            let number = self.number()? as $kind;
            visitor.$visit(number)
        }
    )*};
}

impl<'de> Deserializer<'de> for Reader {
    type Error = Unreadable;

    numbers! {
        deserialize_i8 => visit_i64 as i64, deserialize_i16 => visit_i64 as i64, deserialize_i32 => visit_i64 as i64,
        deserialize_i64 => visit_i64 as i64,
        deserialize_u8 => visit_u64 as u64, deserialize_u16 => visit_u64 as u64, deserialize_u32 => visit_u64 as u64,
        deserialize_u64 => visit_u64 as u64,
        deserialize_f32 => visit_f64 as f64, deserialize_f64 => visit_f64 as f64
    }

    /// For enums whose last variant keeps a word that this version does not contain. serde requests the value first and its type later.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        if self.0.is_string() {
            self.deserialize_string(visitor)
        } else if self.is_nothing() {
            visitor.visit_unit()
        } else if let Some(truth) = self.0.as_bool() {
            visitor.visit_bool(truth)
        } else if self.0.as_f64().is_some() {
            self.deserialize_f64(visitor)
        } else if Array::is_array(&self.0) {
            self.deserialize_seq(visitor)
        } else {
            self.deserialize_map(visitor)
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        visitor.visit_bool(self.0.as_bool().ok_or_else(|| wrong("true or false"))?)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        self.deserialize_string(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        self.deserialize_string(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        visitor.visit_string(self.text()?)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        self.deserialize_any(visitor)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        if self.is_nothing() {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Unreadable> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Unreadable> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        visitor.visit_seq(self.items()?)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Unreadable> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Unreadable> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        let object = Object::from(self.0);
        visitor.visit_map(Entries {
            names: Object::keys(&object),
            object: object.into(),
            at: 0,
            value: JsValue::UNDEFINED,
        })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unreadable> {
        visitor.visit_map(Fields {
            object: self.0,
            names: fields.iter(),
            value: JsValue::UNDEFINED,
        })
    }

    /// Reads an enum from a word.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unreadable> {
        let word: StringDeserializer<Unreadable> = self.text()?.into_deserializer();
        visitor.visit_enum(word)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        self.deserialize_string(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unreadable> {
        visitor.visit_unit()
    }
}

/// The items of a list.
struct Items {
    array: Array,
    at: u32,
}

impl<'de> SeqAccess<'de> for Items {
    type Error = Unreadable;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Unreadable> {
        if self.at >= self.array.length() {
            return Ok(None);
        }
        self.at += 1;
        seed.deserialize(Reader(self.array.get(self.at - 1))).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.array.length() as usize)
    }
}

/// The entries of a map with any names.
struct Entries {
    object: JsValue,
    names: Array,
    at: u32,
    value: JsValue,
}

impl<'de> MapAccess<'de> for Entries {
    type Error = Unreadable;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Unreadable> {
        if self.at >= self.names.length() {
            return Ok(None);
        }
        let name = self.names.get(self.at);
        self.at += 1;
        self.value = Reflect::get(&self.object, &name).map_err(|_| wrong("an object"))?;
        seed.deserialize(Reader(name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Unreadable> {
        seed.deserialize(Reader(std::mem::take(&mut self.value)))
    }
}

/// The fields of a known type; other fields of the object are ignored.
struct Fields {
    object: JsValue,
    names: std::slice::Iter<'static, &'static str>,
    value: JsValue,
}

impl Fields {
    /// Moves to the next field that is present.
    fn step(&mut self) -> Result<Option<&'static str>, Unreadable> {
        for name in self.names.by_ref() {
            self.value = field(&self.object, name)?;
            if !self.value.is_undefined() {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }
}

impl<'de> MapAccess<'de> for Fields {
    type Error = Unreadable;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Unreadable> {
        let Some(name) = self.step()? else { return Ok(None) };
        let name: StrDeserializer<'_, Unreadable> = name.into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Unreadable> {
        seed.deserialize(Reader(std::mem::take(&mut self.value)))
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unreadable {}

/// Shorter than serde's own messages, which would add code for each kind of value.
impl serde::de::Error for Unreadable {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self(format!("it is not {expected}"))
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self(format!("it is not {expected}"))
    }

    fn invalid_length(_: usize, expected: &dyn Expected) -> Self {
        Self(format!("it is not {expected}"))
    }

    fn unknown_variant(word: &str, _: &'static [&'static str]) -> Self {
        Self(format!("unknown value “{word}”"))
    }

    fn missing_field(name: &'static str) -> Self {
        Self(format!("{name} is missing"))
    }
}
