# What `holdfast init aws --layout contract` makes, for dynamodb+sqs://TABLE/QUEUE.

locals {
  dlq_name  = var.dlq_name != null ? var.dlq_name : "${var.queue_name}-dlq"
  topic_arn = var.alarm_topic_arn != null ? var.alarm_topic_arn : aws_sns_topic.alerts[0].arn
}

resource "aws_dynamodb_table" "jobs" {
  name         = var.table_name
  billing_mode = "PAY_PER_REQUEST"
  hash_key     = "job_id"
  tags         = var.tags

  attribute {
    name = "job_id"
    type = "S"
  }

  attribute {
    name = "workspace_id"
    type = "S"
  }

  attribute {
    name = "created_at"
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

  attribute {
    name = "listed"
    type = "S"
  }

  global_secondary_index {
    name               = "workspace_created_at"
    hash_key           = "workspace_id"
    range_key          = "created_at"
    projection_type    = "INCLUDE"
    non_key_attributes = ["status", "workflow_id", "trigger_type", "credits_estimate"]
  }

  global_secondary_index {
    name            = "holdfast_look"
    hash_key        = "look"
    range_key       = "look_at"
    projection_type = "KEYS_ONLY"
  }

  global_secondary_index {
    name            = "holdfast_listed"
    hash_key        = "listed"
    range_key       = "job_id"
    projection_type = "KEYS_ONLY"
  }

  ttl {
    attribute_name = "ttl_at"
    enabled        = true
  }

  point_in_time_recovery {
    enabled = true
  }
}

resource "aws_dynamodb_table" "beside" {
  name         = "${var.table_name}-holdfast"
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

  point_in_time_recovery {
    enabled = true
  }
}

resource "aws_sqs_queue" "dlq" {
  name                      = local.dlq_name
  message_retention_seconds = 1209600
  sqs_managed_sse_enabled   = true
  tags                      = var.tags
}

resource "aws_sqs_queue" "jobs" {
  name                       = var.queue_name
  visibility_timeout_seconds = var.visibility_timeout
  message_retention_seconds  = 1209600
  receive_wait_time_seconds  = 20
  sqs_managed_sse_enabled    = true
  tags                       = var.tags

  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dlq.arn
    maxReceiveCount     = var.max_receives
  })
}

resource "aws_sqs_queue_redrive_allow_policy" "dlq" {
  queue_url = aws_sqs_queue.dlq.id

  redrive_allow_policy = jsonencode({
    redrivePermission = "byQueue"
    sourceQueueArns   = [aws_sqs_queue.jobs.arn]
  })
}

resource "aws_sns_topic" "alerts" {
  count = var.alarm_topic_arn == null ? 1 : 0

  name = var.alarm_topic_name
  tags = var.tags
}

resource "aws_cloudwatch_metric_alarm" "dlq_depth" {
  alarm_name          = "${local.dlq_name}-depth"
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 1
  threshold           = 0
  comparison_operator = "GreaterThanThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = [local.topic_arn]
  tags                = var.tags

  dimensions = {
    QueueName = aws_sqs_queue.dlq.name
  }
}
