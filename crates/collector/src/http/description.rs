//! Adds to the OpenAPI document what the types of a handler do not contain.

use aide::openapi::{MediaType, OpenApi, Operation, Parameter, PathItem, ReferenceOr, Response, StatusCode};
use aide::transform::TransformOperation;
use aide::{OperationInput, OperationOutput};
use serde_json::json;

/// Describes an endpoint whose route does not describe itself. Call it before the document is finished, so that the document contains the
/// types of the endpoint. [`add`] adds the result.
pub(super) fn operation(
    describe: impl FnOnce(TransformOperation<'_>) -> TransformOperation<'_>,
) -> Operation {
    let mut operation = Operation::default();
    let _described = describe(TransformOperation::new(&mut operation));
    operation
}

/// Adds operations to a path of the document. The path may already have other methods.
pub(super) fn add(document: &mut OpenApi, path: &str, operations: PathItem) {
    let paths = &mut document.paths.get_or_insert_default().paths;
    let item = paths
        .entry(path.to_owned())
        .or_insert_with(|| ReferenceOr::Item(PathItem::default()));
    if let ReferenceOr::Item(item) = item {
        item.merge_with(operations);
    }
}

/// The endpoint answers with another status than 200.
pub(super) fn answers<const STATUS: u16, T: OperationOutput>(
    describe: impl FnOnce(TransformOperation<'_>) -> TransformOperation<'_>,
) -> impl FnOnce(TransformOperation<'_>) -> TransformOperation<'_> {
    move |operation| describe(operation).response::<STATUS, T>()
}

/// The endpoint answers 204, without a body.
pub(super) fn answers_nothing(
    describe: impl FnOnce(TransformOperation<'_>) -> TransformOperation<'_>,
) -> impl FnOnce(TransformOperation<'_>) -> TransformOperation<'_> {
    move |operation| {
        let mut operation = describe(operation);
        respond(operation.inner_mut(), 204, Response::default());
        operation
    }
}

/// The endpoint answers with a body that has no type of the API.
pub(super) fn answers_as(
    media_type: &'static str,
    describe: impl FnOnce(TransformOperation<'_>) -> TransformOperation<'_>,
) -> impl FnOnce(TransformOperation<'_>) -> TransformOperation<'_> {
    move |operation| {
        let mut operation = describe(operation);
        let mut response = Response::default();
        response
            .content
            .insert(media_type.to_owned(), MediaType::default());
        respond(operation.inner_mut(), 200, response);
        operation
    }
}

/// The endpoint opens a WebSocket.
pub(super) fn opens_websocket(
    describe: impl FnOnce(TransformOperation<'_>) -> TransformOperation<'_>,
) -> impl FnOnce(TransformOperation<'_>) -> TransformOperation<'_> {
    move |operation| {
        let mut operation = describe(operation);
        respond(operation.inner_mut(), 101, Response::default());
        operation
    }
}

/// The endpoint accepts these parameters, in the query string or in a form. None of them is marked as required.
pub(super) fn takes(
    names: &'static [&'static str],
    describe: impl FnOnce(TransformOperation<'_>) -> TransformOperation<'_>,
) -> impl FnOnce(TransformOperation<'_>) -> TransformOperation<'_> {
    move |operation| {
        let mut operation = describe(operation);
        let parameters = names.iter().map(|name| ReferenceOr::Item(parameter(name)));
        operation.inner_mut().parameters.extend(parameters);
        operation
    }
}

/// The request body is optional.
pub(super) fn body_is_optional(
    describe: impl FnOnce(TransformOperation<'_>) -> TransformOperation<'_>,
) -> impl FnOnce(TransformOperation<'_>) -> TransformOperation<'_> {
    move |operation| {
        let mut operation = describe(operation);
        if let Some(ReferenceOr::Item(body)) = &mut operation.inner_mut().request_body {
            body.required = false;
        }
        operation
    }
}

/// The handler reads the body itself, as this type.
pub(super) fn body_is<T: OperationInput>(
    describe: impl FnOnce(TransformOperation<'_>) -> TransformOperation<'_>,
) -> impl FnOnce(TransformOperation<'_>) -> TransformOperation<'_> {
    move |operation| {
        let mut operation = describe(operation);
        operation.inner_mut().request_body = None;
        operation.input::<T>()
    }
}

fn respond(operation: &mut Operation, status: u16, response: Response) {
    let responses = operation.responses.get_or_insert_default();
    responses
        .responses
        .insert(StatusCode::Code(status), ReferenceOr::Item(response));
}

fn parameter(name: &str) -> Parameter {
    let is_list = name.ends_with("[]");
    let text = json!({"type": "string"});
    let schema = if is_list {
        json!({"type": "array", "items": text})
    } else {
        text
    };
    let parameter = json!({"in": "query", "name": name, "schema": schema});
    serde_json::from_value(parameter).expect("a parameter as OpenAPI has it")
}
