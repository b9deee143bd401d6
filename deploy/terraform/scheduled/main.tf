# What `holdfast init aws --layout scheduled` makes, for dynamodb://TABLE.

resource "aws_dynamodb_table" "jobs" {
  name         = var.table_name
  billing_mode = "PAY_PER_REQUEST"
  hash_key     = "PK"
  range_key    = "SK"
  tags         = var.tags

  attribute {
    name = "PK"
    type = "S"
  }

  attribute {
    name = "SK"
    type = "S"
  }

  attribute {
    name = "look"
    type = "S"
  }

  attribute {
    name = "look_at"
    type = "N"
  }

  global_secondary_index {
    name            = "holdfast_look"
    hash_key        = "look"
    range_key       = "look_at"
    projection_type = "KEYS_ONLY"
  }

  point_in_time_recovery {
    enabled = true
  }
}
