/* Arrays of the explanation: {"shape", "data": base64 of little-endian numbers, "dtype"}. int16 numbers have a "scale". */

const decoded = new WeakMap();

/** Return the array as { shape, data, pooled, at(...indices), row(...indices) }, decoded once; null stays null. */
export function tensor(array) {
  if (!array) return null;
  if (!decoded.has(array)) decoded.set(array, decode(array));
  return decoded.get(array);
}

/** Make a tensor of numbers that are already here. */
export function asTensor(shape, data, pooled = 1) {
  const strides = shape.map((_, n) => shape.slice(n + 1).reduce((a, b) => a * b, 1));
  const place = (indices) => indices.reduce((sum, index, n) => sum + index * strides[n], 0);
  return {
    shape, data, pooled,
    at: (...indices) => data[place(indices)],
    row: (...indices) => data.subarray(place(indices), place(indices) + strides[indices.length - 1]),
  };
}

function decode(array) {
  const text = atob(array.data);
  const bytes = new Uint8Array(text.length);
  for (let n = 0; n < text.length; n++) bytes[n] = text.charCodeAt(n);
  const view = new DataView(bytes.buffer);
  const size = { float32: 4, float16: 2, int16: 2 }[array.dtype];
  if (!size) throw new Error(`an array has dtype ${array.dtype}: expected float16, float32 or int16`);
  const data = new Float32Array(bytes.length / size);
  for (let n = 0; n < data.length; n++)
    data[n] = size === 4 ? view.getFloat32(n * 4, true)
      : array.dtype === "int16" ? view.getInt16(n * 2, true) * array.scale : halfToFloat(view.getUint16(n * 2, true));
  const expected = array.shape.reduce((a, b) => a * b, 1);
  if (data.length !== expected) throw new Error(`an array holds ${data.length} numbers: expected ${expected}`);
  return asTensor(array.shape, data, array.pooled ?? 1);
}

/** Return the number that the 16 bits of an IEEE 754 half stand for. */
export function halfToFloat(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
